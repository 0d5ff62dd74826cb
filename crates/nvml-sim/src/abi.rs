//! Pointers that C callers pass. Only this module reads and writes through these pointers.
//!
//! Each type here is a pointer in the ABI, with a private field and no constructor, so only a C caller can create one.
//! The module has one precondition, which the C API requires. **A pointer is null, or points to memory of the stated
//! type and length that is valid for the duration of the call.** The SAFETY comments below call it the contract.

use std::{
    cell::Cell,
    ffi::{CStr, c_char, c_uint},
};

use crate::status::{NvmlResult, Status};

thread_local! {
    /// True while the call on this thread writes garbage in place of its results.
    static WRITES_GARBAGE: Cell<bool> = const { Cell::new(false) };
}

/// Each byte of garbage.
const GARBAGE: u8 = 0xff;

/// Begins a call with valid results.
pub(crate) fn begin_call() {
    WRITES_GARBAGE.set(false);
}

/// Turns all further writes of this call into garbage.
pub(crate) fn write_garbage() {
    WRITES_GARBAGE.set(true);
}

/// Pointer to one output value, sometimes also an input.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Out<T>(*mut T);

/// Pointer to an output array; a separate parameter holds the length.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct OutArray<T>(*mut T);

/// Pointer to an output string; a separate parameter holds the buffer's length.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct OutText(*mut c_char);

/// String with a terminating NUL.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Text(*const c_char);

/// Pointer to an output struct that begins with its version, one of several.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct OutVersioned(*mut c_uint);

/// Struct that begins with its version.
pub(crate) trait Versioned: Copy {
    /// Version in the struct.
    fn version(&self) -> c_uint;
}

/// Implements [`Versioned`] for structs whose first field is `version`.
macro_rules! versioned {
    ($($type:ty),* $(,)?) => {$(
        const _: () = assert!(std::mem::offset_of!($type, version) == 0);

        impl $crate::abi::Versioned for $type {
            fn version(&self) -> std::ffi::c_uint {
                self.version
            }
        }
    )*};
}
pub(crate) use versioned;

/// `NVML_STRUCT_VERSION` of nvml.h: the size in the low bytes, the number in the highest.
pub(crate) const fn struct_version<T>(number: c_uint) -> c_uint {
    let size = size_of::<T>();
    assert!(size < 1 << 24);
    #[expect(clippy::cast_possible_truncation, reason = "asserted above")]
    let size = size as c_uint;
    size | (number << 24)
}

// === impl Out ===

impl<T: Copy> Out<T> {
    /// Writes the value; a null pointer is an invalid argument.
    pub(crate) fn put(self, value: T) -> NvmlResult {
        self.check()?;
        if WRITES_GARBAGE.get() {
            // SAFETY: not null, so by the contract valid for one T, which is C's and may have any bytes.
            unsafe { self.0.write_bytes(GARBAGE, 1) };
            return Ok(());
        }
        // SAFETY: not null, so by the contract valid for one T.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// Refuses a null pointer. Calls check this before they look up a device.
    pub(crate) fn check(self) -> NvmlResult {
        if self.0.is_null() { Err(Status::INVALID_ARGUMENT) } else { Ok(()) }
    }

    /// Reads the caller's value.
    pub(crate) fn read(self) -> NvmlResult<T> {
        self.check()?;
        // SAFETY: not null, so by the contract valid for one T, which the caller has filled.
        Ok(unsafe { self.0.read() })
    }
}

// === impl OutArray ===

impl<T: Copy> OutArray<T> {
    /// Writes the first values of an array of the given length.
    pub(crate) fn put(self, length: usize, values: &[T]) -> NvmlResult {
        if values.is_empty() {
            return Ok(());
        }
        if self.0.is_null() {
            return Err(Status::INVALID_ARGUMENT);
        }
        if values.len() > length {
            return Err(Status::INSUFFICIENT_SIZE);
        }
        if WRITES_GARBAGE.get() {
            // SAFETY: not null and long enough, so by the contract valid for these values, which are C's and may
            // have any bytes.
            unsafe { self.0.write_bytes(GARBAGE, values.len()) };
            return Ok(());
        }
        // SAFETY: not null and long enough, so by the contract valid for these values; the source
        // is a Rust slice and cannot overlap with memory of the caller.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), self.0, values.len()) };
        Ok(())
    }

    /// NVML's convention for arrays: `count` is the capacity on entry, and the number of values on return.
    pub(crate) fn put_counted(self, count: Out<c_uint>, values: &[T]) -> NvmlResult {
        let capacity = count.read()? as usize;
        if self.0.is_null() && capacity > 0 {
            return Err(Status::INVALID_ARGUMENT);
        }
        count.put(c_uint::try_from(values.len()).map_err(|_| Status::UNKNOWN)?)?;
        // A garbage count exceeds the capacity, so the array is not written.
        if values.len() > capacity || WRITES_GARBAGE.get() {
            return Err(Status::INSUFFICIENT_SIZE);
        }
        self.put(capacity, values)
    }

    /// Variant of [`Self::put_counted`]: with a null array, the call succeeds and returns only the count.
    pub(crate) fn put_or_count(self, count: Out<c_uint>, values: &[T]) -> NvmlResult {
        if self.0.is_null() {
            return count.put(c_uint::try_from(values.len()).map_err(|_| Status::UNKNOWN)?);
        }
        self.put_counted(count, values)
    }

    /// Replaces each value of the array.
    pub(crate) fn map(self, length: usize, change: impl Fn(T) -> T) -> NvmlResult {
        for index in 0..length {
            let element = Out(self.0.wrapping_add(index));
            if self.0.is_null() {
                return Err(Status::INVALID_ARGUMENT);
            }
            element.put(change(element.read()?))?;
        }
        Ok(())
    }
}

// === impl OutText ===

impl OutText {
    /// Writes the text and a NUL into a buffer of `length` bytes. Garbage fills the buffer without a NUL.
    pub(crate) fn put(self, length: c_uint, text: &str) -> NvmlResult {
        if self.0.is_null() {
            return Err(Status::INVALID_ARGUMENT);
        }
        if WRITES_GARBAGE.get() {
            return OutArray(self.0).put(length as usize, &vec![0; length as usize]);
        }
        let bytes: Vec<c_char> = text.bytes().chain([0]).map(byte_as_char).collect();
        OutArray(self.0).put(length as usize, &bytes)
    }
}

// === impl Text ===

impl Text {
    /// Reads the text. NVML text is always ASCII.
    pub(crate) fn read(self) -> NvmlResult<String> {
        if self.0.is_null() {
            return Err(Status::INVALID_ARGUMENT);
        }
        // SAFETY: not null, so by the contract a string that ends with NUL.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map(str::to_owned).map_err(|_| Status::INVALID_ARGUMENT)
    }
}

// === impl OutVersioned ===

impl OutVersioned {
    /// Version that the caller expects, which determines the size of the caller's struct.
    pub(crate) fn version(self) -> NvmlResult<c_uint> {
        Out(self.0).read()
    }

    /// Reads the caller's struct of this version.
    pub(crate) fn read<T: Versioned>(self, version: c_uint) -> NvmlResult<T> {
        if self.version()? != version {
            return Err(Status::VERSION_MISMATCH);
        }
        // The version includes the size, so the caller's struct matches `T`.
        Out(self.0.cast::<T>()).read()
    }

    /// Writes a struct of exactly the version that the caller expects.
    pub(crate) fn put<T: Versioned>(self, value: T) -> NvmlResult {
        if self.version()? != value.version() {
            return Err(Status::VERSION_MISMATCH);
        }
        // The version includes the size, so the caller's struct matches `T`.
        Out(self.0.cast::<T>()).put(value)
    }
}

/// Text of a struct field: truncated to leave room for a NUL, and padded with zeros.
pub(crate) fn char_array<const LENGTH: usize>(text: &str) -> [c_char; LENGTH] {
    let mut field = [0; LENGTH];
    let capacity = LENGTH.saturating_sub(1);
    for (element, byte) in field.iter_mut().zip(text.bytes().take(capacity)) {
        *element = byte_as_char(byte);
    }
    field
}

#[expect(
    clippy::cast_possible_wrap,
    reason = "the bits are equal for a signed and an unsigned char"
)]
fn byte_as_char(byte: u8) -> c_char {
    byte as c_char
}
