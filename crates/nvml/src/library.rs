//! The loaded library: initialisation, symbol lookup, and the macros for calls.

use std::{
    ffi::{CStr, c_char},
    path::Path,
};

use libloading::Library;
use nvml_wrapper_sys::bindings as sys;

use crate::{
    Result, elf,
    error::{LoadError, NvmlError},
};

/// Library after a successful `nvmlInit_v2`. It is shut down on drop.
pub(crate) struct Table {
    pub(crate) library: Library,
}

/// Calls a function of the table and checks its result: `call!(table, nvmlInit_v2)`. A function that the generated
/// bindings lack has its signature behind a colon.
///
/// All calls of NVML use this macro. Callers pass plain values, handles that NVML returned since its initialisation, or
/// pointers to live locals of the type in `nvml.h`.
macro_rules! call {
    ($table:expr, $function:ident $(: $signature:ty)? $(, $argument:expr)*) => {
        match $crate::library::find!(&$table.library, $function $(: $signature)?) {
            None => Err($crate::error::NvmlError::function_not_found(stringify!($function))),
            Some(function) => {
                // SAFETY: the symbol was resolved in a library that the table keeps open, with its
                // signature in nvml.h. The table's constructor initialises NVML, and its drop shuts NVML
                // down. NVML may be called from any thread.
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

/// Field of the bindings' table of functions. It only provides a function's type. The table itself is not filled,
/// because that would look up four hundred functions, three times as many as are called, with 0.1 MB of code.
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

/// Calls a function whose last argument is a pointer to one value, and returns the value. Before the call the value is
/// all zeros, or the expression after `;`.
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

/// Gets a number, as `get!` does. A number above the limit, after `;`, is an impossible answer.
macro_rules! get_at_most {
    ($table:expr, $function:ident $(, $argument:expr)*; $max:expr) => {
        $crate::library::get!($table, $function $(, $argument)*)
            .and_then(|value| $crate::error::at_most(stringify!($function), value, $max))
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
            buffer.text().ok_or_else(|| $crate::error::NvmlError::invalid_answer(call))
        })
    }};
}
pub(crate) use get_text;

/// Types for which all bytes zero is a valid value.
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

/// Buffer for any text of NVML. The limits in `nvml.h` are at most 96 bytes.
pub(crate) struct TextBuffer([c_char; Self::SIZE as usize]);

// === impl Table ===

impl Table {
    /// Opens and initialises the library at `path`. A bare file name uses the dynamic linker's search path.
    pub(crate) fn load(path: &Path) -> Result<Self, LoadError> {
        elf::check_length(path)?;
        // SAFETY: loading runs the library's constructors. The operator names the file in the
        // configuration, as for any program that uses NVML; the default is the driver's own.
        let library = unsafe { Library::new(path) }
            .map_err(|source| LoadError::Open(path.to_owned(), source))?;
        let init = Self::init(&library);
        init.map_err(|source| LoadError::Init(path.to_owned(), source))?;
        Ok(Self { library })
    }

    fn init(library: &Library) -> Result<()> {
        const CALL: &str = "nvmlInit_v2";
        let Some(init) = find!(library, nvmlInit_v2) else {
            return Err(NvmlError::function_not_found(CALL));
        };
        // SAFETY: resolved in the library, which is open; it may be called at any time.
        NvmlError::check(CALL, unsafe { init() })
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // A failure has no remedy, and no effect on the agent.
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
