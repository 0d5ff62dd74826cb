//! JPEG, as cameras send it: also frames without Huffman tables.

use zune_jpeg::{
    JpegDecoder,
    zune_core::{bytestream::ZCursor, colorspace::ColorSpace::RGB, options::DecoderOptions},
};

use super::{PictureError, ppm::Ppm};
use crate::cli::PictureSize;

/// A segment as AVI's frames have it. Such frames may lack Huffman tables, and mean the standard's. Cameras leave the
/// tables out with and without this segment; the decoder fills them in where it sees it. Tables of a frame take
/// precedence.
const MOTION: [u8; 9] = *b"\xff\xe0\0\x07AVI1\0";

/// Bytes of the marker with which a JPEG begins.
const START: usize = 2;

/// Marker of its end, which occurs in no data of pixels. Cameras pad frames behind it.
const END: [u8; 2] = [0xff, 0xd9];

/// Decodes a picture to RGB of at most this many bytes. Grey has three equal colours.
pub(super) fn decode(jpeg: &[u8], max_bytes: usize) -> Result<Ppm, PictureError> {
    let broken = |error| PictureError::Jpeg(Box::new(error));
    // The decoder does without the last bytes.
    if !jpeg.windows(END.len()).rev().any(|pair| pair == END) {
        return Err(PictureError::Jpeg("its end is missing".into()));
    }
    let marked = [&jpeg[..START], &MOTION, &jpeg[START..]].concat();
    // Strict: a frame that was cut is no picture with a grey end.
    let options = DecoderOptions::default().set_strict_mode(true).jpeg_set_out_colorspace(RGB);
    let largest = PictureSize::LARGEST as usize;
    let options = options.set_max_width(largest).set_max_height(largest);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(&marked), options);
    decoder.decode_headers().map_err(broken)?;
    let info = decoder.info().expect("the headers are decoded");
    if !matches!(info.components, 1 | 3) {
        return Err(PictureError::Colours { components: info.components });
    }
    let size = PictureSize { width: info.width.into(), height: info.height.into() };
    Ppm::write(size, max_bytes, |pixels| decoder.decode_into(pixels).map_err(broken))
}
