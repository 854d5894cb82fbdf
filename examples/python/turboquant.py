"""libturboquant through ctypes: no compiler, numpy optional.

Rows are any object with the buffer protocol that holds contiguous float32 numbers, for
instance array.array("f") or a numpy array; strided views are copied first. The library is
loaded by full path with local scope, so that another library with tq_ symbols cannot take
its place: TURBOQUANT_LIB names it, else the system's search does.
"""
import ctypes
import ctypes.util
import os
from array import array

ABI = 0
F32, F16, BF16 = 0, 1, 2
CAUSAL = 1


class RowsIn(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("token_stride", ctypes.c_int64),
                ("head_stride", ctypes.c_int64), ("dtype", ctypes.c_int32),
                ("reserved", ctypes.c_uint32)]


class CacheConfig(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in
                ("struct_size", "flags", "n_layers", "n_kv_heads", "n_q_heads", "head_dim",
                 "v_head_dim", "variant")] + [
        ("layer_formats", ctypes.c_void_p)] + [
        (name, ctypes.c_uint32) for name in
        ("boundary_layers", "page_tokens", "max_seqs", "reserved")] + [
        ("max_pages", ctypes.c_uint64), ("seed", ctypes.c_uint64)]


class ThreadpoolConfig(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in
                ("struct_size", "flags", "n_threads", "reserved")] + [
        ("allocator", ctypes.c_void_p)]


class ContextConfig(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("flags", ctypes.c_uint32),
                ("device", ctypes.c_int32), ("device_index", ctypes.c_int32),
                ("cpu_features_disabled", ctypes.c_uint64),
                ("allocator", ctypes.c_void_p), ("executor", ctypes.c_void_p)]


class AttendParams(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("flags", ctypes.c_uint32),
                ("scale", ctypes.c_float), ("reserved", ctypes.c_uint32),
                ("logit_softcap", ctypes.c_float), ("window", ctypes.c_uint32)]


class BatchDesc(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("n_seqs", ctypes.c_uint32),
                ("seqs", ctypes.POINTER(ctypes.c_uint64)),
                ("n_append", ctypes.POINTER(ctypes.c_uint32)),
                ("n_query", ctypes.POINTER(ctypes.c_uint32))]


class Error(RuntimeError):
    """A status of the library with its message."""

    def __init__(self, name, text):
        super().__init__("%s: %s" % (name, text))
        self.name = name


def _load():
    path = os.environ.get("TURBOQUANT_LIB") or ctypes.util.find_library("turboquant")
    if not path:
        raise OSError("libturboquant not found; set TURBOQUANT_LIB to its path")
    lib = ctypes.CDLL(path, mode=ctypes.RTLD_LOCAL)
    handle, u32, u64 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64
    for name, result, arguments in [
            ("tq_abi_version", u32, []),
            ("tq_version_string", ctypes.c_char_p, []),
            ("tq_last_error", ctypes.c_char_p, []),
            ("tq_status_name", ctypes.c_char_p, [ctypes.c_int32]),
            ("tq_threadpool_create", ctypes.c_int32, [handle, ctypes.POINTER(handle)]),
            ("tq_threadpool_destroy", None, [handle]),
            ("tq_threadpool_executor", handle, [handle]),
            ("tq_context_create", ctypes.c_int32, [handle, ctypes.POINTER(handle)]),
            ("tq_context_destroy", None, [handle]),
            ("tq_variant_find", ctypes.c_int32, [ctypes.c_char_p, ctypes.POINTER(u32)]),
            ("tq_cache_create", ctypes.c_int32,
             [handle, ctypes.POINTER(CacheConfig), ctypes.POINTER(handle)]),
            ("tq_cache_destroy", None, [handle]),
            ("tq_seq_create", ctypes.c_int32, [handle, ctypes.POINTER(u64)]),
            ("tq_seq_destroy", ctypes.c_int32, [handle, u64]),
            ("tq_seq_fork", ctypes.c_int32, [handle, u64, u64, ctypes.POINTER(u64)]),
            ("tq_seq_length", ctypes.c_int32, [handle, u64, u32, ctypes.POINTER(u64)]),
            ("tq_seq_truncate", ctypes.c_int32, [handle, u64, u64]),
            ("tq_seq_remove", ctypes.c_int32, [handle, u64, u64, u64]),
            ("tq_seq_reorder", ctypes.c_int32,
             [handle, u32, ctypes.POINTER(u64), ctypes.POINTER(u32)]),
            ("tq_seq_save_range", ctypes.c_int32,
             [handle, u64, u64, u64, handle, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)]),
            ("tq_seq_load", ctypes.c_int32,
             [handle, handle, ctypes.c_size_t, ctypes.POINTER(u64)]),
            ("tq_seq_load_append", ctypes.c_int32, [handle, u64, handle, ctypes.c_size_t]),
            ("tq_seq_copy", ctypes.c_int32, [handle, handle, u64, u64, u64, ctypes.POINTER(u64)]),
            ("tq_append", ctypes.c_int32,
             [handle, u64, u32, u32, ctypes.POINTER(RowsIn), ctypes.POINTER(RowsIn), handle]),
            ("tq_attend", ctypes.c_int32,
             [handle, u64, u32, u32, ctypes.POINTER(AttendParams), ctypes.POINTER(RowsIn),
              ctypes.POINTER(RowsIn), ctypes.POINTER(ctypes.c_float), handle]),
            ("tq_batch_create", ctypes.c_int32, [handle, u32, u32, ctypes.POINTER(handle)]),
            ("tq_batch_destroy", None, [handle]),
            ("tq_batch_plan", ctypes.c_int32, [handle, ctypes.POINTER(BatchDesc), handle]),
            ("tq_batch_append", ctypes.c_int32,
             [handle, u32, ctypes.POINTER(RowsIn), ctypes.POINTER(RowsIn), handle]),
            ("tq_batch_attend", ctypes.c_int32,
             [handle, u32, ctypes.POINTER(AttendParams), ctypes.POINTER(RowsIn),
              ctypes.POINTER(RowsIn), ctypes.POINTER(ctypes.c_float), handle]),
            ("tq_batch_commit", ctypes.c_int32, [handle, ctypes.POINTER(u32)]),
            ("tq_batch_cancel", ctypes.c_int32, [handle])]:
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    if lib.tq_abi_version() != ABI:
        raise OSError("libturboquant has ABI %d, this module needs %d" % (lib.tq_abi_version(), ABI))
    return lib


_lib = _load()


def _check(status):
    if status != 0:
        raise Error(_lib.tq_status_name(status).decode(), _lib.tq_last_error().decode())


def version():
    return _lib.tq_version_string().decode()


def _rows(values, n_elements, what):
    """(buffer that must stay alive, RowsIn) of n_elements float32 numbers."""
    view = memoryview(values)
    if view.format not in ("f", "<f"):
        raise TypeError("%s: float32 rows are needed, not format %r" % (what, view.format))
    if not view.c_contiguous:
        view = memoryview(bytearray(view.tobytes())).cast("f")
    size = view.nbytes // 4
    if size != n_elements:
        raise ValueError("%s: %d numbers given, %d needed" % (what, size, n_elements))
    if view.readonly:
        view = memoryview(bytearray(view.tobytes())).cast("f")
    buffer = (ctypes.c_float * size).from_buffer(view.cast("B"))
    return buffer, RowsIn(ctypes.addressof(buffer), 0, 0, F32, 0)


class Cache:
    """Keys and values of sequences for the layers of one model.

    threads: how many work, the calling one included; 0 = as many as CPUs.
    """

    def __init__(self, variant, n_layers, n_kv_heads, head_dim, n_q_heads=0, threads=1,
                 **options):
        self._cache, self._context = ctypes.c_void_p(), ctypes.c_void_p()
        self._pool, self._batches = ctypes.c_void_p(), []
        number = ctypes.c_uint32()
        _check(_lib.tq_variant_find(variant.encode(), ctypes.byref(number)))
        config = CacheConfig(struct_size=ctypes.sizeof(CacheConfig), n_layers=n_layers,
                             n_kv_heads=n_kv_heads, n_q_heads=n_q_heads or n_kv_heads,
                             head_dim=head_dim, variant=number.value, **options)
        try:
            self._make_context(threads)
            _check(_lib.tq_cache_create(self._context, ctypes.byref(config),
                                        ctypes.byref(self._cache)))
        except Error:
            self.close()
            raise
        self._kv, self._q, self._dim = n_kv_heads, config.n_q_heads, head_dim

    def _make_context(self, threads):
        config = ContextConfig(struct_size=ctypes.sizeof(ContextConfig))
        if threads != 1:
            pool = ThreadpoolConfig(struct_size=ctypes.sizeof(ThreadpoolConfig),
                                    n_threads=threads)
            _check(_lib.tq_threadpool_create(ctypes.byref(pool), ctypes.byref(self._pool)))
            config.executor = _lib.tq_threadpool_executor(self._pool)
        _check(_lib.tq_context_create(ctypes.byref(config), ctypes.byref(self._context)))

    def close(self):
        for batch in self._batches:
            batch.close()
        if self._cache:
            _lib.tq_cache_destroy(self._cache)
        if self._context:
            _lib.tq_context_destroy(self._context)
        if self._pool:
            _lib.tq_threadpool_destroy(self._pool)
        self._cache, self._context = ctypes.c_void_p(), ctypes.c_void_p()
        self._pool = ctypes.c_void_p()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()

    def _handle(self):
        if not self._cache:
            raise ValueError("the cache is closed")
        return self._cache

    def sequence(self):
        seq = ctypes.c_uint64()
        _check(_lib.tq_seq_create(self._handle(), ctypes.byref(seq)))
        return seq.value

    def fork(self, seq):
        out = ctypes.c_uint64()
        _check(_lib.tq_seq_fork(self._handle(), seq, 2**64 - 1, ctypes.byref(out)))
        return out.value

    def drop(self, seq):
        _check(_lib.tq_seq_destroy(self._handle(), seq))

    def length(self, seq, layer=0):
        out = ctypes.c_uint64()
        _check(_lib.tq_seq_length(self._handle(), seq, layer, ctypes.byref(out)))
        return out.value

    def truncate(self, seq, n_tokens):
        _check(_lib.tq_seq_truncate(self._handle(), seq, n_tokens))

    def remove(self, seq, first, n_tokens):
        """Takes tokens out of the middle."""
        _check(_lib.tq_seq_remove(self._handle(), seq, first, n_tokens))

    def reorder(self, seqs, parents):
        """seqs[i] becomes what seqs[parents[i]] was, all at once."""
        n = len(seqs)
        if len(parents) != n:
            raise ValueError("%d sequences, %d parents" % (n, len(parents)))
        _check(_lib.tq_seq_reorder(self._handle(), n, (ctypes.c_uint64 * n)(*seqs),
                                   (ctypes.c_uint32 * n)(*parents)))

    def save(self, seq, first=0, n_tokens=2**64 - 1):
        """A snapshot of all tokens, or of some, as a bytearray."""
        size = ctypes.c_size_t()
        _check(_lib.tq_seq_save_range(self._handle(), seq, first, n_tokens, None, 0,
                                      ctypes.byref(size)))
        out = bytearray(size.value)
        buffer = (ctypes.c_char * size.value).from_buffer(out)
        _check(_lib.tq_seq_save_range(self._handle(), seq, first, n_tokens, buffer, size,
                                      ctypes.byref(size)))
        return out

    def load(self, snapshot, seq=None):
        """A new sequence from any object with bytes, or more tokens for one."""
        data = bytes(snapshot)
        if seq is not None:
            _check(_lib.tq_seq_load_append(self._handle(), seq, data, len(data)))
            return seq
        out = ctypes.c_uint64()
        _check(_lib.tq_seq_load(self._handle(), data, len(data), ctypes.byref(out)))
        return out.value

    def copy(self, source, seq, first=0, n_tokens=2**64 - 1):
        """A new sequence here with tokens of a sequence of another cache."""
        out = ctypes.c_uint64()
        _check(_lib.tq_seq_copy(self._handle(), source._handle(), seq, first, n_tokens,
                                ctypes.byref(out)))
        return out.value

    def append(self, seq, layer, n_tokens, keys, values):
        n = n_tokens * self._kv * self._dim
        hold_k, k = _rows(keys, n, "keys")
        hold_v, v = _rows(values, n, "values")
        _check(_lib.tq_append(self._handle(), seq, layer, n_tokens, ctypes.byref(k),
                              ctypes.byref(v), None))
        del hold_k, hold_v

    def attend(self, seq, layer, n_queries, queries, causal=True, softcap=0.0, window=0):
        """(out, lse): array("f") of n_queries * n_q_heads * head_dim and * n_q_heads."""
        n = n_queries * self._q * self._dim
        hold_q, q = _rows(queries, n, "queries")
        out = array("f", bytes(4 * n))
        hold_o, o = _rows(out, n, "out")
        lse = (ctypes.c_float * (n_queries * self._q))()
        params = AttendParams(ctypes.sizeof(AttendParams), CAUSAL if causal else 0, 0.0, 0,
                              softcap, window)
        _check(_lib.tq_attend(self._handle(), seq, layer, n_queries, ctypes.byref(params),
                              ctypes.byref(q), ctypes.byref(o), lse, None))
        del hold_q, hold_o
        return out, array("f", lse)

    def batch(self, max_seqs, max_tokens):
        """Steps over up to max_seqs sequences and max_tokens rows; closed with the cache."""
        made = Batch(self, max_seqs, max_tokens)
        self._batches.append(made)
        return made


class Batch:
    """One step after another over many sequences: plan, then append and attend in every
    layer, then commit or cancel. Rows of all sequences lie one behind another."""

    def __init__(self, cache, max_seqs, max_tokens):
        self._batch, self._cache = ctypes.c_void_p(), cache
        self._n = self._appends = self._queries = 0
        _check(_lib.tq_batch_create(cache._handle(), max_seqs, max_tokens,
                                    ctypes.byref(self._batch)))

    def close(self):
        if self._batch:
            _lib.tq_batch_destroy(self._batch)
        self._batch = ctypes.c_void_p()

    def _handle(self):
        if not self._batch:
            raise ValueError("the batch is closed")
        return self._batch

    def plan(self, seqs, n_append=None, n_query=None):
        """Counts per sequence; None: one token each, and as many queries as tokens."""
        n = len(seqs)
        n_append = [1] * n if n_append is None else list(n_append)
        n_query = n_append if n_query is None else list(n_query)
        if len(n_append) != n or len(n_query) != n:
            raise ValueError("%d sequences, %d and %d counts" % (n, len(n_append), len(n_query)))
        ids = (ctypes.c_uint64 * n)(*seqs)
        appends, queries = (ctypes.c_uint32 * n)(*n_append), (ctypes.c_uint32 * n)(*n_query)
        desc = BatchDesc(ctypes.sizeof(BatchDesc), n, ids, appends, queries)
        _check(_lib.tq_batch_plan(self._handle(), ctypes.byref(desc), None))
        self._n, self._appends, self._queries = n, sum(n_append), sum(n_query)

    def append(self, layer, keys, values):
        n = self._appends * self._cache._kv * self._cache._dim
        hold_k, k = _rows(keys, n, "keys")
        hold_v, v = _rows(values, n, "values")
        _check(_lib.tq_batch_append(self._handle(), layer, ctypes.byref(k), ctypes.byref(v), None))
        del hold_k, hold_v

    def attend(self, layer, queries, causal=True, softcap=0.0, window=0):
        """(out, lse) as Cache.attend() gives them, for all query rows of the step."""
        n_lse = self._queries * self._cache._q
        hold_q, q = _rows(queries, n_lse * self._cache._dim, "queries")
        out = array("f", bytes(4 * n_lse * self._cache._dim))
        hold_o, o = _rows(out, len(out), "out")
        lse = (ctypes.c_float * n_lse)()
        params = AttendParams(ctypes.sizeof(AttendParams), CAUSAL if causal else 0, 0.0, 0,
                              softcap, window)
        _check(_lib.tq_batch_attend(self._handle(), layer, ctypes.byref(params), ctypes.byref(q),
                                    ctypes.byref(o), lse, None))
        del hold_q, hold_o
        return out, array("f", lse)

    def commit(self, n_keep=None):
        """Keeps all tokens of the step, or the first n_keep of each sequence."""
        if n_keep is None:
            keep = None
        elif len(n_keep) != self._n:
            raise ValueError("%d sequences, %d counts" % (self._n, len(n_keep)))
        else:
            keep = (ctypes.c_uint32 * self._n)(*n_keep)
        _check(_lib.tq_batch_commit(self._handle(), keep))

    def cancel(self):
        _check(_lib.tq_batch_cancel(self._handle()))
