//! Loaded library: initialisation, symbol lookup, and the single call shim.

use std::{
    ffi::{CStr, c_char},
    fmt,
    path::Path,
    sync::Arc,
};

use libloading::Library;
use nvml_wrapper_sys::bindings as sys;

use crate::{
    Result, elf,
    error::{LoadError, NvmlError},
    event::EventSet,
    gpu::Gpu,
};

/// NVML, loaded and initialised. Shut down when the last clone and the last [`Gpu`] are dropped.
#[derive(Clone)]
pub struct Nvml {
    pub(crate) table: Arc<Table>,
}

/// The newest CUDA version that the driver supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaVersion {
    /// Major version.
    pub major: u32,
    /// Minor version.
    pub minor: u32,
}

/// Library after a successful `nvmlInit_v2`, called as a table of functions.
pub(crate) struct Table {
    pub(crate) library: Library,
}

/// Calls a function of the table and checks its result: `call!(table, nvmlInit_v2)`. A function that the generated
/// bindings lack has its signature behind a colon.
///
/// The only way into NVML. Callers pass plain values, handles that NVML returned since its initialisation, or
/// pointers to live locals of the type in `nvml.h`.
macro_rules! call {
    ($table:expr, $function:ident $(: $signature:ty)? $(, $argument:expr)*) => {
        match $crate::library::find!(&$table.library, $function $(: $signature)?) {
            None => Err($crate::error::NvmlError::missing(stringify!($function))),
            Some(function) => {
                // SAFETY: the symbol was resolved in a library that the table keeps open, with the
                // signature that nvml.h gives it. NVML is initialised while a table exists (its
                // constructor did it, its drop undoes it) and may be called from any thread.
                // Pointer arguments are valid for writes of their type during the call (see above).
                let code = unsafe { function($($argument),*) };
                $crate::error::NvmlError::check(stringify!($function), code)
            }
        }
    };
}
pub(crate) use call;

/// Looks up a function; `None` if the driver lacks it.
macro_rules! find {
    ($library:expr, $function:ident) => {{
        let name = concat!(stringify!($function), "\0");
        // SAFETY: the type is that of the generated table's field of the same name.
        unsafe { $crate::library::find_as($library, name, |table| &table.$function) }
    }};
    ($library:expr, $function:ident: $signature:ty) => {{
        let name = concat!(stringify!($function), "\0");
        // SAFETY: the type is the function's in nvml.h, copied beside its structures.
        unsafe { $crate::library::find_named::<$signature>($library, name) }
    }};
}
pub(crate) use find;

/// A field of the generated table, for its type. The table itself stays unused: filling it looks up four hundred
/// functions, three times as many as are called, with 0.1 MB of code.
type Field<F> = fn(&sys::NvmlLib) -> &Result<F, libloading::Error>;

/// Looks up a function of the generated table by its name, which ends with a NUL.
///
/// # Safety
///
/// `F` is the function's type.
pub(crate) unsafe fn find_as<F: Copy>(library: &Library, name: &str, _type: Field<F>) -> Option<F> {
    // SAFETY: by the contract above.
    unsafe { find_named(library, name) }
}

/// Looks up a function by its name, which ends with a NUL.
///
/// # Safety
///
/// `F` is the function's type.
pub(crate) unsafe fn find_named<F: Copy>(library: &Library, name: &str) -> Option<F> {
    // SAFETY: by the contract above.
    unsafe { library.get::<F>(name.as_bytes()) }.ok().map(|function| *function)
}

/// Calls a function whose last argument is a pointer to one value; returns the value. It is all zeros before the call,
/// or what is given behind `;`.
macro_rules! get {
    ($table:expr, $function:ident $(, $argument:expr)*) => {
        get!($table, $function $(, $argument)*; $crate::library::Zeros::zeros())
    };
    ($table:expr, $function:ident $(, $argument:expr)*; $before:expr) => {{
        let mut value = $before;
        $crate::library::call!($table, $function $(, $argument)*, &raw mut value).map(|()| value)
    }};
}
pub(crate) use get;

/// Gets a number; one above the limit makes no sense.
macro_rules! get_at_most {
    ($table:expr, $function:ident $(, $argument:expr)*; $most:expr) => {
        $crate::library::get!($table, $function $(, $argument)*)
            .and_then(|value| $crate::error::at_most(stringify!($function), value, $most))
    };
}
pub(crate) use get_at_most;

/// Calls a function whose last arguments are a text buffer and its size; returns the text.
macro_rules! get_text {
    ($table:expr, $function:ident $(, $argument:expr)*) => {{
        let mut buffer = $crate::library::TextBuffer::new();
        $crate::library::call!(
            $table, $function $(, $argument)*, buffer.as_mut_ptr(), $crate::library::TextBuffer::SIZE
        )
        .and_then(|()| {
            let call = stringify!($function);
            buffer.text().ok_or_else(|| $crate::error::NvmlError::nonsense(call))
        })
    }};
}
pub(crate) use get_text;

/// Types of which all zeros is a value.
///
/// # Safety
///
/// All zeros is a value of the type.
pub(crate) unsafe trait Zeros: Sized {
    fn zeros() -> Self {
        // SAFETY: by the contract above.
        unsafe { std::mem::zeroed() }
    }
}

// SAFETY: a null pointer.
unsafe impl<T> Zeros for *mut T {}

macro_rules! zeros {
    ($($type:ty),+ $(,)?) => {$(
        // SAFETY: integers, unions of them, raw pointers, and arrays of these.
        unsafe impl Zeros for $type {}
    )+};
}

zeros! {
    i32,
    u32,
    u64,
    sys::nvmlComputeInstanceInfo_t,
    sys::nvmlComputeInstanceProfileInfo_t,
    sys::nvmlDeviceAttributes_t,
    sys::nvmlEventData_t,
    sys::nvmlFieldValue_t,
    sys::nvmlGpuFabricInfo_t,
    sys::nvmlGpuFabricInfo_v3_t,
    sys::nvmlGpuInstanceInfo_t,
    sys::nvmlGpuInstanceProfileInfo_v2_t,
    sys::nvmlMemory_t,
    sys::nvmlMemory_v2_t,
    sys::nvmlPciInfo_t,
    sys::nvmlUtilization_t,
}

/// Bound on GPUs: minor numbers of the driver's nodes have one byte.
const MAX_GPUS: u32 = 256;

/// Buffer for any NVML text; NVML's limits are at most 96 bytes.
pub(crate) struct TextBuffer([c_char; Self::SIZE as usize]);

// === impl Nvml ===

impl Nvml {
    /// Opens and initialises the library at `path`. A bare file name uses the dynamic linker's search path.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        elf::check_length(path)?;
        // SAFETY: loading runs the library's constructors. The operator names the file in the
        // configuration, as for any program that uses NVML; the default is the driver's own.
        let library = unsafe { Library::new(path) }
            .map_err(|source| LoadError::Open(path.to_owned(), source))?;
        let init = Table::init(&library);
        init.map_err(|source| LoadError::Init(path.to_owned(), source))?;
        Ok(Self { table: Arc::new(Table { library }) })
    }

    /// Profile of a simulated machine, if the library is Windlass' simulated driver.
    pub fn simulated(&self) -> Option<String> {
        type Function = unsafe extern "C" fn() -> *const c_char;
        // SAFETY: the symbol's name is Windlass' own; only its simulated driver exports it, with
        // this signature.
        let profile =
            unsafe { self.table.library.get::<Function>(b"windlass_simulated_machine\0") };
        let profile = profile.ok()?;
        // SAFETY: it takes nothing, and gives null or text that lives as long as the library.
        let text = unsafe { profile() };
        // SAFETY: not null, NUL-terminated and alive, by the contract above.
        (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }

    /// Driver version, `580.95.05`.
    pub fn driver_version(&self) -> Result<String> {
        get_text!(self.table, nvmlSystemGetDriverVersion)
    }

    /// Newest CUDA version that the driver supports.
    pub fn cuda_version(&self) -> Result<CudaVersion> {
        /// `NVML_CUDA_DRIVER_VERSION_MAJOR` in `nvml.h`: 12080 is 12.8.
        const MAJOR: u32 = 1000;
        let number: i32 = get!(self.table, nvmlSystemGetCudaDriverVersion_v2)?;
        let number = number.unsigned_abs();
        Ok(CudaVersion { major: number / MAJOR, minor: number % MAJOR / 10 })
    }

    /// Number of GPUs, failed ones included.
    pub fn gpu_count(&self) -> Result<u32> {
        get_at_most!(self.table, nvmlDeviceGetCount_v2; MAX_GPUS)
    }

    /// The GPU at an index below [`Self::gpu_count`]; NVML orders by PCI address.
    pub fn gpu(&self, index: u32) -> Result<Gpu> {
        let handle = get!(self.table, nvmlDeviceGetHandleByIndex_v2, index)?;
        Ok(Gpu::new(self.table.clone(), handle))
    }

    /// An empty event set.
    pub fn event_set(&self) -> Result<EventSet> {
        EventSet::new(self.table.clone())
    }
}

impl fmt::Debug for Nvml {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nvml").finish_non_exhaustive()
    }
}

// === impl Table ===

impl Table {
    fn init(library: &Library) -> Result<()> {
        const CALL: &str = "nvmlInit_v2";
        let Some(init) = find!(library, nvmlInit_v2) else {
            return Err(NvmlError::missing(CALL));
        };
        // SAFETY: resolved in the library, which is open; it may be called at any time.
        NvmlError::check(CALL, unsafe { init() })
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // Failure has no remedy and no effect.
        let _ = call!(self, nvmlShutdown);
    }
}

// === impl TextBuffer ===

impl TextBuffer {
    pub(crate) const SIZE: u32 = 128;

    pub(crate) fn new() -> Self {
        Self([0; Self::SIZE as usize])
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut c_char {
        self.0.as_mut_ptr()
    }

    /// The text, if it is terminated and valid UTF-8.
    pub(crate) fn text(&self) -> Option<String> {
        let bytes = self.0.map(|unit| u8::from_ne_bytes(unit.to_ne_bytes()));
        CStr::from_bytes_until_nul(&bytes).ok()?.to_str().ok().map(str::to_owned)
    }
}

/// Text of a fixed array, up to the first NUL.
pub(crate) fn text_in(array: &[c_char]) -> String {
    let bytes: Vec<u8> = array
        .iter()
        .map(|&unit| u8::from_ne_bytes(unit.to_ne_bytes()))
        .take_while(|&byte| byte != 0)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
