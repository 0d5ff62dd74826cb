//! Work on pictures: converts JPEG and PPM to PPM, and resizes them if requested.

mod jpeg;
mod ppm;
mod resize;

use bytes::Bytes;
use windlass_pipeline::quantity;

use self::ppm::Ppm;
use crate::cli::{PictureSize, WorkArgs};

/// Requested work on pictures: the size of the result, and the limit of its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pictures {
    size: Option<PictureSize>,
    max_bytes: usize,
}

/// Reason why a payload cannot be converted.
#[derive(Debug, thiserror::Error)]
pub(super) enum PictureError {
    #[error("is neither JPEG nor PPM: begins with \"{begin}\"")]
    UnknownFormat { begin: String },
    #[error("is not a complete JPEG")]
    Jpeg(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error(
        "is a JPEG of {components} colours: only grey and the three colours of cameras are supported"
    )]
    UnsupportedColours { components: u8 },
    #[error("is not a complete PPM: {reason}")]
    Ppm { reason: String },
    #[error("has {size} pixels, which are {} of RGB; the limit is {} (--max-payload)", .bytes, .limit)]
    TooLarge { size: PictureSize, bytes: quantity::Bytes, limit: quantity::Bytes },
}

/// Number of bytes of an unknown payload that an error shows: the length of a format's magic number.
const MAGIC_BYTES: usize = 8;

// === impl Pictures ===

impl Pictures {
    /// The work that the command line requests, if any.
    pub(super) fn of(args: &WorkArgs, max_payload: usize) -> Option<Self> {
        let size = args.resize;
        (args.decode || size.is_some()).then_some(Self { size, max_bytes: max_payload })
    }

    /// Converts the payload to PPM. A PPM of the requested size passes unchanged.
    pub(super) fn work(self, payload: Bytes) -> Result<Bytes, PictureError> {
        let picture = match &payload[..] {
            [0xff, 0xd8, ..] => jpeg::decode(&payload, self.max_bytes)?,
            [b'P', b'6', ..] => Ppm::read(payload)?,
            other => {
                let begin = other[..other.len().min(MAGIC_BYTES)].escape_ascii().to_string();
                return Err(PictureError::UnknownFormat { begin });
            }
        };
        let picture = match self.size {
            Some(size) if size != picture.size() => {
                // Rows are resized first, so the limit holds for a picture of new width and old height too.
                let intermediate = PictureSize { width: size.width, ..picture.size() };
                Ppm::length(intermediate, self.max_bytes)?;
                Ppm::write(size, self.max_bytes, |pixels| {
                    resize::resize(picture.pixels(), picture.size(), size, pixels);
                    Ok(())
                })?
            }
            _ => picture,
        };
        Ok(picture.into_bytes())
    }
}

#[cfg(test)]
mod tests;
