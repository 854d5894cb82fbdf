//! The part of tq.h that this crate uses, by hand. Statuses are plain integers: an unknown
//! value in a Rust enum would be undefined behaviour.
#![allow(non_camel_case_types)]

use std::os::raw::{c_char, c_void};

pub type tq_status = i32;
pub type tq_seq = u64;

pub enum tq_context {}
pub enum tq_cache {}
pub enum tq_batch {}
pub enum tq_threadpool {}
/// Only passed on.
pub enum tq_executor {}

#[repr(C)]
pub struct tq_threadpool_config {
    pub struct_size: u32,
    pub flags: u32,
    pub n_threads: u32,
    pub reserved: u32,
    pub allocator: *const c_void,
}

#[repr(C)]
pub struct tq_context_config {
    pub struct_size: u32,
    pub flags: u32,
    pub device: i32,
    pub device_index: i32,
    pub cpu_features_disabled: u64,
    pub allocator: *const c_void,
    pub executor: *const tq_executor,
}

#[repr(C)]
pub struct tq_rows_in {
    pub data: *const c_void,
    pub token_stride: i64,
    pub head_stride: i64,
    pub dtype: i32,
    pub reserved: u32,
}

#[repr(C)]
pub struct tq_rows_out {
    pub data: *mut c_void,
    pub token_stride: i64,
    pub head_stride: i64,
    pub dtype: i32,
    pub reserved: u32,
}

#[repr(C)]
pub struct tq_cache_config {
    pub struct_size: u32,
    pub flags: u32,
    pub n_layers: u32,
    pub n_kv_heads: u32,
    pub n_q_heads: u32,
    pub head_dim: u32,
    pub v_head_dim: u32,
    pub variant: u32,
    pub layer_formats: *const c_void,
    pub boundary_layers: u32,
    pub page_tokens: u32,
    pub max_seqs: u32,
    pub reserved: u32,
    pub max_pages: u64,
    pub seed: u64,
}

#[repr(C)]
pub struct tq_batch_desc {
    pub struct_size: u32,
    pub n_seqs: u32,
    pub seqs: *const tq_seq,
    pub n_append: *const u32,
    pub n_query: *const u32,
}

#[repr(C)]
pub struct tq_attend_params {
    pub struct_size: u32,
    pub flags: u32,
    pub scale: f32,
    pub reserved: u32,
}

extern "C" {
    pub fn tq_abi_version() -> u32;
    pub fn tq_last_error() -> *const c_char;
    pub fn tq_status_name(status: tq_status) -> *const c_char;
    pub fn tq_variant_find(name: *const c_char, out: *mut u32) -> tq_status;
    pub fn tq_threadpool_create(
        config: *const tq_threadpool_config,
        out: *mut *mut tq_threadpool,
    ) -> tq_status;
    pub fn tq_threadpool_destroy(pool: *mut tq_threadpool);
    pub fn tq_threadpool_executor(pool: *const tq_threadpool) -> *const tq_executor;
    pub fn tq_context_create(
        config: *const tq_context_config,
        out: *mut *mut tq_context,
    ) -> tq_status;
    pub fn tq_context_destroy(ctx: *mut tq_context);
    pub fn tq_cache_create(
        ctx: *mut tq_context,
        config: *const tq_cache_config,
        out: *mut *mut tq_cache,
    ) -> tq_status;
    pub fn tq_cache_destroy(cache: *mut tq_cache);
    pub fn tq_seq_create(cache: *mut tq_cache, out: *mut tq_seq) -> tq_status;
    pub fn tq_seq_destroy(cache: *mut tq_cache, seq: tq_seq) -> tq_status;
    pub fn tq_seq_length(
        cache: *const tq_cache,
        seq: tq_seq,
        layer: u32,
        out: *mut u64,
    ) -> tq_status;
    pub fn tq_append(
        cache: *mut tq_cache,
        seq: tq_seq,
        layer: u32,
        n_tokens: u32,
        k: *const tq_rows_in,
        v: *const tq_rows_in,
        stream: *mut c_void,
    ) -> tq_status;
    pub fn tq_attend(
        cache: *const tq_cache,
        seq: tq_seq,
        layer: u32,
        n_queries: u32,
        params: *const tq_attend_params,
        q: *const tq_rows_in,
        out: *const tq_rows_out,
        lse: *mut f32,
        stream: *mut c_void,
    ) -> tq_status;
    pub fn tq_batch_create(
        cache: *mut tq_cache,
        max_seqs: u32,
        max_tokens: u32,
        out: *mut *mut tq_batch,
    ) -> tq_status;
    pub fn tq_batch_destroy(batch: *mut tq_batch);
    pub fn tq_batch_plan(
        batch: *mut tq_batch,
        desc: *const tq_batch_desc,
        stream: *mut c_void,
    ) -> tq_status;
    pub fn tq_batch_append(
        batch: *mut tq_batch,
        layer: u32,
        k: *const tq_rows_in,
        v: *const tq_rows_in,
        stream: *mut c_void,
    ) -> tq_status;
    pub fn tq_batch_attend(
        batch: *mut tq_batch,
        layer: u32,
        params: *const tq_attend_params,
        q: *const tq_rows_in,
        out: *const tq_rows_out,
        lse: *mut f32,
        stream: *mut c_void,
    ) -> tq_status;
    pub fn tq_batch_commit(batch: *mut tq_batch, n_keep: *const u32) -> tq_status;
    pub fn tq_batch_cancel(batch: *mut tq_batch) -> tq_status;
}
