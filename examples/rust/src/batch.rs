//! Steps over many sequences: plan, append and attend per layer, commit.

use std::mem;
use std::ptr;

use crate::{causal, check, ffi, invalid, rows, rows_out, Cache, Result, Seq};

/// A batch of a cache, which it borrows: nothing else can change the cache meanwhile.
pub struct Batch<'a> {
    cache: &'a mut Cache,
    batch: *mut ffi::tq_batch,
    n_seqs: usize,
    n_tokens: usize,
}

impl Cache {
    pub fn batch(&mut self, max_seqs: u32, max_tokens: u32) -> Result<Batch<'_>> {
        let mut batch = ptr::null_mut();
        check(unsafe { ffi::tq_batch_create(self.cache, max_seqs, max_tokens, &mut batch) })?;
        Ok(Batch { cache: self, batch, n_seqs: 0, n_tokens: 0 })
    }
}

impl Batch<'_> {
    /// Begins a step: sequences with the number of tokens that each appends and asks for.
    pub fn plan(&mut self, step: &[(Seq, u32)]) -> Result<()> {
        let seqs: Vec<u64> = step.iter().map(|(seq, _)| seq.0).collect();
        let tokens: Vec<u32> = step.iter().map(|(_, n)| *n).collect();
        let desc = ffi::tq_batch_desc {
            struct_size: mem::size_of::<ffi::tq_batch_desc>() as u32,
            n_seqs: seqs.len() as u32,
            seqs: seqs.as_ptr(),
            n_append: tokens.as_ptr(),
            n_query: ptr::null(),
        };
        check(unsafe { ffi::tq_batch_plan(self.batch, &desc, ptr::null_mut()) })?;
        self.n_seqs = seqs.len();
        self.n_tokens = tokens.iter().map(|n| *n as usize).sum();
        Ok(())
    }

    fn need(&self, what: &str, data: &[f32], heads: u32) -> Result<()> {
        let n = self.n_tokens * heads as usize * self.cache.shape.head_dim as usize;
        if data.len() != n {
            return Err(invalid(format!("{what}: {} numbers, the step has {n}", data.len())));
        }
        Ok(())
    }

    /// Rows [token][n_kv_heads][head_dim] of all sequences, one behind another.
    pub fn append(&mut self, layer: u32, k: &[f32], v: &[f32]) -> Result<()> {
        self.need("k", k, self.cache.shape.n_kv_heads)?;
        self.need("v", v, self.cache.shape.n_kv_heads)?;
        check(unsafe {
            ffi::tq_batch_append(self.batch, layer, &rows(k), &rows(v), ptr::null_mut())
        })
    }

    /// Causal attention of rows [token][n_q_heads][head_dim]: (out, lse).
    pub fn attend(&mut self, layer: u32, q: &[f32]) -> Result<(Vec<f32>, Vec<f32>)> {
        self.need("q", q, self.cache.shape.n_q_heads)?;
        let mut out = vec![0.0; q.len()];
        let mut lse = vec![0.0; self.n_tokens * self.cache.shape.n_q_heads as usize];
        let target = rows_out(&mut out);
        check(unsafe {
            ffi::tq_batch_attend(
                self.batch,
                layer,
                &causal(),
                &rows(q),
                &target,
                lse.as_mut_ptr(),
                ptr::null_mut(),
            )
        })?;
        Ok((out, lse))
    }

    /// Ends the step and keeps the first tokens of every sequence; None = all.
    pub fn commit(&mut self, keep: Option<&[u32]>) -> Result<()> {
        if keep.is_some_and(|keep| keep.len() != self.n_seqs) {
            return Err(invalid(format!("keep: the step has {} sequences", self.n_seqs)));
        }
        let keep = keep.map_or(ptr::null(), |keep| keep.as_ptr());
        check(unsafe { ffi::tq_batch_commit(self.batch, keep) })?;
        self.n_tokens = 0;
        Ok(())
    }

    /// Ends the step as if it had not been.
    pub fn cancel(&mut self) -> Result<()> {
        check(unsafe { ffi::tq_batch_cancel(self.batch) })?;
        self.n_tokens = 0;
        Ok(())
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        unsafe { ffi::tq_batch_destroy(self.batch) };
    }
}

#[cfg(test)]
mod tests {
    use crate::{Cache, Shape};

    const SHAPE: Shape = Shape { n_layers: 1, n_kv_heads: 2, n_q_heads: 4, head_dim: 64 };

    fn waves(n: usize, step: f32) -> Vec<f32> {
        (0..n).map(|i| (i as f32 * step).sin()).collect()
    }

    #[test]
    fn steps_are_like_single_calls() {
        let mut cache = Cache::with_threads("4bit_nc", SHAPE, 2).unwrap();
        let seqs: Vec<_> = (0..4).map(|_| cache.create_seq().unwrap()).collect();
        let (a, b) = (waves(5 * 128, 0.7), waves(128, 1.3));
        let (qa, qb) = (waves(5 * 256, 0.3), waves(256, 0.9));
        cache.append(seqs[0], 0, &a, &a).unwrap();
        cache.append(seqs[1], 0, &b, &b).unwrap();
        let one = cache.attend(seqs[0], 0, &qa).unwrap();
        let two = cache.attend(seqs[1], 0, &qb).unwrap();
        let mut batch = cache.batch(4, 16).unwrap();
        batch.plan(&[(seqs[2], 5), (seqs[3], 1)]).unwrap();
        let both = [a, b].concat();
        batch.append(0, &both, &both).unwrap();
        let (out, lse) = batch.attend(0, &[qa, qb].concat()).unwrap();
        assert_eq!(out, [one.0, two.0].concat());
        assert_eq!(lse, [one.1, two.1].concat());
        assert!(batch.commit(Some(&[1])).is_err());
        batch.commit(Some(&[3, 1])).unwrap();
        drop(batch);
        assert_eq!(cache.len(seqs[2], 0).unwrap(), 3);
        assert_eq!(cache.len(seqs[3], 0).unwrap(), 1);
    }

    #[test]
    fn steps_can_be_cancelled() {
        let mut cache = Cache::new("int8", SHAPE).unwrap();
        let seq = cache.create_seq().unwrap();
        let rows = waves(2 * 128, 0.1);
        let mut batch = cache.batch(1, 2).unwrap();
        assert_eq!(batch.commit(None).err().unwrap().name, "TQ_ERR_INVALID_STATE");
        batch.plan(&[(seq, 2)]).unwrap();
        assert!(batch.append(0, &rows[1..], &rows).is_err());
        batch.append(0, &rows, &rows).unwrap();
        batch.cancel().unwrap();
        assert!(batch.plan(&[(seq, 3)]).is_err()); /* more than the batch is for */
        drop(batch);
        assert_eq!(cache.len(seq, 0).unwrap(), 0);
    }
}
