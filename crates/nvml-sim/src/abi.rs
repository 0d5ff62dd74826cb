//! Pointers that come from C: the only place where this library writes or reads through them.
//!
//! Each type here is a pointer in the ABI and can only be made by a caller in C, because its field
//! is private and it has no constructor. That makes the contract of the C API the one precondition
//! of all that follows: **a pointer is null, or points to memory of the stated type and length that
//! is valid for the duration of the call.** The SAFETY comments below call it the contract.

use std::{
    cell::Cell,
    ffi::{CStr, c_char, c_uint},
};

use crate::status::{Answer, Status};

thread_local! {
    /// Whether what the call on this thread writes is garbage instead of what it has to tell.
    static GARBLED: Cell<bool> = const { Cell::new(false) };
}

/// Each byte of it.
const GARBAGE: u8 = 0xff;

/// A call begins, and tells the truth.
pub(crate) fn begin() {
    GARBLED.set(false);
}

/// All that this call writes from here on is garbage.
pub(crate) fn garble() {
    GARBLED.set(true);
}

/// Where one value goes, and sometimes comes from.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Out<T>(*mut T);

/// Where an array goes; its length is another parameter.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct OutArray<T>(*mut T);

/// Where a string goes; the buffer's length is another parameter.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct OutText(*mut c_char);

/// A string that ends with NUL.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Text(*const c_char);

/// Where a struct goes that begins with its own version, of which there are several.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct OutVersioned(*mut c_uint);

/// A struct that begins with its own version.
pub(crate) trait Versioned: Copy {
    /// The version that it says it has.
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
    pub(crate) fn put(self, value: T) -> Answer {
        self.check()?;
        if GARBLED.get() {
            // SAFETY: not null, so by the contract valid for one T, which is C's and may have any bytes.
            unsafe { self.0.write_bytes(GARBAGE, 1) };
            return Ok(());
        }
        // SAFETY: not null, so by the contract valid for one T.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// Refuses null, before anything is looked up.
    pub(crate) fn check(self) -> Answer {
        if self.0.is_null() { Err(Status::INVALID_ARGUMENT) } else { Ok(()) }
    }

    /// What the caller wrote there.
    pub(crate) fn read(self) -> Answer<T> {
        self.check()?;
        // SAFETY: not null, so by the contract valid for one T, which the caller has filled.
        Ok(unsafe { self.0.read() })
    }
}

// === impl OutArray ===

impl<T: Copy> OutArray<T> {
    /// Writes the first values of an array that has `length` of them.
    pub(crate) fn put(self, length: usize, values: &[T]) -> Answer {
        if values.is_empty() {
            return Ok(());
        }
        if self.0.is_null() {
            return Err(Status::INVALID_ARGUMENT);
        }
        if values.len() > length {
            return Err(Status::INSUFFICIENT_SIZE);
        }
        if GARBLED.get() {
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

    /// The array's convention for unknown lengths: `count` says how many fit and is told how many
    /// there are.
    pub(crate) fn put_counted(self, count: Out<c_uint>, values: &[T]) -> Answer {
        let room = count.read()? as usize;
        if self.0.is_null() && room > 0 {
            return Err(Status::INVALID_ARGUMENT);
        }
        count.put(c_uint::try_from(values.len()).map_err(|_| Status::UNKNOWN)?)?;
        // Garbage is more than fits into any array.
        if values.len() > room || GARBLED.get() {
            return Err(Status::INSUFFICIENT_SIZE);
        }
        self.put(room, values)
    }

    /// The other convention: without an array, being told how many there are is a success.
    pub(crate) fn put_or_count(self, count: Out<c_uint>, values: &[T]) -> Answer {
        if self.0.is_null() {
            return count.put(c_uint::try_from(values.len()).map_err(|_| Status::UNKNOWN)?);
        }
        self.put_counted(count, values)
    }

    /// Replaces each of the array's values.
    pub(crate) fn map(self, length: usize, change: impl Fn(T) -> T) -> Answer {
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
    /// Writes the text and a NUL into a buffer of `length` bytes; garbage fills it, and has no end.
    pub(crate) fn put(self, length: c_uint, text: &str) -> Answer {
        if self.0.is_null() {
            return Err(Status::INVALID_ARGUMENT);
        }
        if GARBLED.get() {
            return OutArray(self.0).put(length as usize, &vec![0; length as usize]);
        }
        let bytes: Vec<c_char> = text.bytes().chain([0]).map(byte_as_char).collect();
        OutArray(self.0).put(length as usize, &bytes)
    }
}

// === impl Text ===

impl Text {
    /// The text, which in NVML is always ASCII.
    pub(crate) fn read(self) -> Answer<String> {
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
    /// The version that the caller expects, which tells the size of its struct.
    pub(crate) fn version(self) -> Answer<c_uint> {
        Out(self.0).read()
    }

    /// What the caller wrote there, if its struct has this version.
    pub(crate) fn read<T: Versioned>(self, version: c_uint) -> Answer<T> {
        if self.version()? != version {
            return Err(Status::VERSION_MISMATCH);
        }
        // The version holds the size, so the caller's struct is this one.
        Out(self.0.cast::<T>()).read()
    }

    /// Writes a struct of just the version that the caller expects.
    pub(crate) fn put<T: Versioned>(self, value: T) -> Answer {
        if self.version()? != value.version() {
            return Err(Status::VERSION_MISMATCH);
        }
        // The version holds the size, so the caller's struct is this one.
        Out(self.0.cast::<T>()).put(value)
    }
}

/// Text in a field of a struct: cut where it does not fit, zero behind.
pub(crate) fn field<const LENGTH: usize>(text: &str) -> [c_char; LENGTH] {
    let mut field = [0; LENGTH];
    let room = LENGTH.saturating_sub(1);
    for (place, byte) in field.iter_mut().zip(text.bytes().take(room)) {
        *place = byte_as_char(byte);
    }
    field
}

#[expect(clippy::cast_possible_wrap, reason = "the same bits, whatever sign C gives to char")]
fn byte_as_char(byte: u8) -> c_char {
    byte as c_char
}
