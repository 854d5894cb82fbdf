//! A safe wrapper of libturboquant: raw declarations in `ffi`, owned handles here.

mod batch;
pub mod ffi;

pub use batch::Batch;

use std::ffi::{CStr, CString};
use std::fmt;
use std::mem;
use std::ptr;

/// A failed call: the status and the library's own explanation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    pub status: i32,
    pub name: String,
    pub message: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.message)
    }
}

impl std::error::Error for Error {}

pub type Result<T> = std::result::Result<T, Error>;

fn text(p: *const std::os::raw::c_char) -> String {
    // Both functions that return text promise static or thread-local storage, never NULL.
    unsafe { CStr::from_ptr(p) }.to_string_lossy().into_owned()
}

fn check(status: i32) -> Result<()> {
    if status == 0 {
        return Ok(());
    }
    Err(Error {
        status,
        name: text(unsafe { ffi::tq_status_name(status) }),
        message: text(unsafe { ffi::tq_last_error() }),
    })
}

fn invalid(message: String) -> Error {
    Error { status: -1, name: "TQ_ERR_INVALID_ARGUMENT".into(), message }
}

/// Shape of a cache.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub n_layers: u32,
    pub n_kv_heads: u32,
    pub n_q_heads: u32,
    pub head_dim: u32,
}

/// A cache with its context. It may move to another thread, and shared references may be
/// used from many: functions that take a const handle are safe to call at the same time.
pub struct Cache {
    pool: *mut ffi::tq_threadpool,
    ctx: *mut ffi::tq_context,
    cache: *mut ffi::tq_cache,
    shape: Shape,
}

unsafe impl Send for Cache {}
unsafe impl Sync for Cache {}

/// Id of a sequence; a stale one is an error, never a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seq(u64);

impl Cache {
    pub fn new(variant: &str, shape: Shape) -> Result<Cache> {
        Cache::with_threads(variant, shape, 1)
    }

    /// threads: how many work, the calling one included; 0 = as many as CPUs.
    pub fn with_threads(variant: &str, shape: Shape, threads: u32) -> Result<Cache> {
        let name = CString::new(variant).map_err(|_| invalid("variant: contains NUL".into()))?;
        let mut number = 0;
        if unsafe { ffi::tq_abi_version() } != 0 {
            return Err(invalid("the library has another ABI".into()));
        }
        check(unsafe { ffi::tq_variant_find(name.as_ptr(), &mut number) })?;
        let mut new = Cache {
            pool: ptr::null_mut(),
            ctx: ptr::null_mut(),
            cache: ptr::null_mut(),
            shape,
        };
        new.create_context(threads)?;
        let config = ffi::tq_cache_config {
            struct_size: mem::size_of::<ffi::tq_cache_config>() as u32,
            flags: 0,
            n_layers: shape.n_layers,
            n_kv_heads: shape.n_kv_heads,
            n_q_heads: shape.n_q_heads,
            head_dim: shape.head_dim,
            v_head_dim: 0,
            variant: number,
            layer_formats: ptr::null(),
            boundary_layers: 0,
            page_tokens: 0,
            max_seqs: 0,
            reserved: 0,
            max_pages: 0,
            seed: 0,
        };
        check(unsafe { ffi::tq_cache_create(new.ctx, &config, &mut new.cache) })?;
        Ok(new)
    }

    fn create_context(&mut self, threads: u32) -> Result<()> {
        if threads != 1 {
            let config = ffi::tq_threadpool_config {
                struct_size: mem::size_of::<ffi::tq_threadpool_config>() as u32,
                flags: 0,
                n_threads: threads,
                reserved: 0,
                allocator: ptr::null(),
            };
            check(unsafe { ffi::tq_threadpool_create(&config, &mut self.pool) })?;
        }
        let config = ffi::tq_context_config {
            struct_size: mem::size_of::<ffi::tq_context_config>() as u32,
            flags: 0,
            device: 0,
            device_index: 0,
            cpu_features_disabled: 0,
            allocator: ptr::null(),
            executor: unsafe { ffi::tq_threadpool_executor(self.pool) },
        };
        check(unsafe { ffi::tq_context_create(&config, &mut self.ctx) })
    }

    pub fn create_seq(&mut self) -> Result<Seq> {
        let mut id = 0;
        check(unsafe { ffi::tq_seq_create(self.cache, &mut id) })?;
        Ok(Seq(id))
    }

    pub fn destroy_seq(&mut self, seq: Seq) -> Result<()> {
        check(unsafe { ffi::tq_seq_destroy(self.cache, seq.0) })
    }

    pub fn len(&self, seq: Seq, layer: u32) -> Result<u64> {
        let mut n = 0;
        check(unsafe { ffi::tq_seq_length(self.cache, seq.0, layer, &mut n) })?;
        Ok(n)
    }

    /// Adjacent rows [n_tokens][n_kv_heads][head_dim].
    pub fn append(&mut self, seq: Seq, layer: u32, k: &[f32], v: &[f32]) -> Result<()> {
        let row = self.shape.n_kv_heads as usize * self.shape.head_dim as usize;
        if k.len() != v.len() || k.len() % row != 0 {
            return Err(invalid(format!("k and v: {} and {} numbers", k.len(), v.len())));
        }
        let n_tokens = (k.len() / row) as u32;
        check(unsafe {
            ffi::tq_append(self.cache, seq.0, layer, n_tokens, &rows(k), &rows(v), ptr::null_mut())
        })
    }

    /// Causal attention of adjacent rows [n_queries][n_q_heads][head_dim]: (out, lse).
    pub fn attend(&self, seq: Seq, layer: u32, q: &[f32]) -> Result<(Vec<f32>, Vec<f32>)> {
        let heads = self.shape.n_q_heads as usize;
        let row = heads * self.shape.head_dim as usize;
        if q.len() % row != 0 {
            return Err(invalid(format!("q: {} numbers", q.len())));
        }
        let n_queries = q.len() / row;
        let mut out = vec![0.0; q.len()];
        let mut lse = vec![0.0; n_queries * heads];
        let params = causal();
        let target = rows_out(&mut out);
        check(unsafe {
            ffi::tq_attend(
                self.cache,
                seq.0,
                layer,
                n_queries as u32,
                &params,
                &rows(q),
                &target,
                lse.as_mut_ptr(),
                ptr::null_mut(),
            )
        })?;
        Ok((out, lse))
    }
}

fn causal() -> ffi::tq_attend_params {
    ffi::tq_attend_params {
        struct_size: mem::size_of::<ffi::tq_attend_params>() as u32,
        flags: 1,
        scale: 0.0,
        reserved: 0,
    }
}

fn rows_out(data: &mut [f32]) -> ffi::tq_rows_out {
    ffi::tq_rows_out {
        data: data.as_mut_ptr().cast(),
        token_stride: 0,
        head_stride: 0,
        dtype: 0,
        reserved: 0,
    }
}

fn rows(data: &[f32]) -> ffi::tq_rows_in {
    ffi::tq_rows_in {
        data: data.as_ptr().cast(),
        token_stride: 0,
        head_stride: 0,
        dtype: 0,
        reserved: 0,
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        unsafe {
            ffi::tq_cache_destroy(self.cache);
            ffi::tq_context_destroy(self.ctx);
            ffi::tq_threadpool_destroy(self.pool);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { n_layers: 2, n_kv_heads: 2, n_q_heads: 4, head_dim: 64 };

    #[test]
    fn sizes_are_those_of_the_header() {
        assert_eq!(mem::size_of::<ffi::tq_rows_in>(), 32);
        assert_eq!(mem::size_of::<ffi::tq_cache_config>(), 72);
        assert_eq!(mem::size_of::<ffi::tq_attend_params>(), 16);
        assert_eq!(mem::size_of::<ffi::tq_threadpool_config>(), 24);
        assert_eq!(mem::size_of::<ffi::tq_batch_desc>(), 32);
        assert_eq!(mem::size_of::<ffi::tq_context_config>(), 40);
    }

    #[test]
    fn zero_queries_give_the_mean() {
        let mut cache = Cache::new("f16", SHAPE).unwrap();
        let seq = cache.create_seq().unwrap();
        let k = vec![0.5; 3 * 2 * 64];
        let v: Vec<f32> = (0..3).flat_map(|t| vec![t as f32; 2 * 64]).collect();
        cache.append(seq, 1, &k, &v).unwrap();
        let (out, lse) = cache.attend(seq, 1, &[0.0; 4 * 64]).unwrap();
        assert!(out.iter().all(|x| (x - 1.0).abs() < 1e-6));
        assert!(lse.iter().all(|x| (x - 3f32.ln()).abs() < 1e-6));
        assert_eq!(cache.len(seq, 1).unwrap(), 3);
        assert_eq!(cache.len(seq, 0).unwrap(), 0);
    }

    #[test]
    fn errors_are_results() {
        assert_eq!(Cache::new("nothing", SHAPE).err().unwrap().name, "TQ_ERR_NOT_FOUND");
        let bad = Shape { head_dim: 65, ..SHAPE };
        assert_eq!(Cache::new("int8", bad).err().unwrap().name, "TQ_ERR_INVALID_ARGUMENT");
        let mut cache = Cache::new("int8", SHAPE).unwrap();
        let seq = cache.create_seq().unwrap();
        assert!(cache.append(seq, 0, &[0.0; 5], &[0.0; 5]).is_err());
        cache.destroy_seq(seq).unwrap();
        assert_eq!(cache.len(seq, 0).err().unwrap().name, "TQ_ERR_NOT_FOUND");
    }

    #[test]
    fn threads_give_the_same_bits() {
        let rows: Vec<f32> = (0..3000 * 2 * 64).map(|i| (i as f32).sin()).collect();
        let q: Vec<f32> = (0..4 * 64).map(|i| (i as f32).cos()).collect();
        let run = |threads| {
            let mut cache = Cache::with_threads("4bit_nc", SHAPE, threads).unwrap();
            let seq = cache.create_seq().unwrap();
            cache.append(seq, 0, &rows, &rows).unwrap();
            cache.attend(seq, 0, &q).unwrap()
        };
        let one = run(1);
        assert_eq!(run(0), one);
        assert_eq!(run(3), one);
        assert!(Cache::with_threads("4bit_nc", SHAPE, 100_000).is_err());
    }

    #[test]
    fn readers_share() {
        let mut cache = Cache::new("4bit_nc", SHAPE).unwrap();
        let seq = cache.create_seq().unwrap();
        let rows: Vec<f32> = (0..10 * 2 * 64).map(|i| (i as f32).sin()).collect();
        cache.append(seq, 0, &rows, &rows).unwrap();
        let q: Vec<f32> = (0..4 * 64).map(|i| (i as f32).cos()).collect();
        let one = cache.attend(seq, 0, &q).unwrap();
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| assert_eq!(cache.attend(seq, 0, &q).unwrap(), one));
            }
        });
    }
}
