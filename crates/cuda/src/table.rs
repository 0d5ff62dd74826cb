//! Function table of the loaded library, initialisation, and the call shim.

use std::{
    ffi::{c_int, c_uint, c_void},
    fmt,
    path::Path,
};

use libloading::Library;

use crate::error::LoadError;

/// Defines the function table. It keeps the library open.
macro_rules! functions {
    ($($name:ident($($parameter:ty),*);)*) => {
        /// Functions by exported name.
        #[allow(non_snake_case, reason = "the names are NVIDIA's")]
        pub(crate) struct Table {
            $(pub(crate) $name: unsafe extern "C" fn($($parameter),*) -> c_uint,)*
            _library: Library,
        }

        impl Table {
            /// Resolves all functions.
            fn of(library: Library) -> Result<Self, libloading::Error> {
                Ok(Self {
                    $(
                        // SAFETY: the symbol is a function with the signature below, from `cuda.h`. The table
                        // keeps the library open.
                        $name: *unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }?,
                    )*
                    _library: library,
                })
            }
        }
    };
}

// Signatures of `cuda.h`. A suffix is the version of a changed signature; libraries keep the older ones for existing
// programs. The newest function is `cuDeviceGetUuid_v2` of CUDA 11.4 (driver 470), which distinguishes MIG devices.
// CUdevice is an int, CUdeviceptr an unsigned 64-bit number, CUuuid 16 bytes, CUcontext an opaque pointer.
functions! {
    cuInit(c_uint);
    cuDeviceGet(*mut c_int, c_int);
    cuDeviceGetUuid_v2(*mut [u8; 16], c_int);
    cuDeviceGetAttribute(*mut c_int, c_int, c_int);
    cuCtxCreate_v2(*mut *mut c_void, c_uint, c_int);
    cuCtxDestroy_v2(*mut c_void);
    cuCtxSynchronize();
    cuMemGetInfo_v2(*mut usize, *mut usize);
    cuMemAlloc_v2(*mut u64, usize);
    cuMemFree_v2(u64);
    cuMemsetD8_v2(u64, u8, usize);
    cuMemcpyDtoH_v2(*mut c_void, u64, usize);
}

/// Calls a function of the table and checks its result: `call!(table, cuInit, 0)`.
///
/// All calls of CUDA use this macro. Callers pass plain values, valid handles and addresses of CUDA, or pointers to
/// live locals of the type and length in `cuda.h`.
macro_rules! call {
    ($table:expr, $function:ident $(, $argument:expr)*) => {{
        // SAFETY: the function was resolved in a library that the table keeps open, with the signature of
        // `cuda.h`. CUDA may be called from any thread; a context stays on the thread that created it.
        // Pointer arguments are valid for writes of their type during the call (see above).
        let code = unsafe { ($table.$function)($($argument),*) };
        $crate::error::CudaError::check(stringify!($function), code)
    }};
}
pub(crate) use call;

// === impl Table ===

impl Table {
    /// Opens and initialises the library at `path`. A bare file name uses the dynamic linker's search path.
    pub(crate) fn load(path: &Path) -> Result<Self, LoadError> {
        let open = |source| LoadError::Open(path.to_owned(), source);
        // SAFETY: loading runs the library's constructors. The operator names the file in the configuration, as
        // for any program that uses CUDA; the default is the driver's own.
        let library = unsafe { Library::new(path) }.map_err(open)?;
        let table = Self::of(library).map_err(open)?;
        let init = call!(table, cuInit, 0);
        init.map_err(|source| LoadError::Init(path.to_owned(), source))?;
        Ok(table)
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").finish_non_exhaustive()
    }
}
