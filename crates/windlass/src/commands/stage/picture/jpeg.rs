//! Decoder of JPEG as cameras send it, including frames without Huffman tables.

use zune_jpeg::{
    JpegDecoder,
    zune_core::{bytestream::ZCursor, colorspace::ColorSpace::RGB, options::DecoderOptions},
};

use super::{PictureError, ppm::Ppm};
use crate::cli::PictureSize;

/// APP0 segment of frames in AVI. Such frames may lack Huffman tables; they then use the standard's. Cameras omit the
/// tables with and without this segment, and the decoder adds them only if it finds the segment. Tables of a frame take
/// precedence.
const AVI_SEGMENT: [u8; 9] = *b"\xff\xe0\0\x07AVI1\0";

/// Length of the marker at the start of a JPEG.
const START_BYTES: usize = 2;

/// End marker, which never occurs in pixel data. Cameras add padding after it.
const END: [u8; 2] = [0xff, 0xd9];

/// Decodes a picture to a PPM of at most `max_bytes`. A grey pixel becomes three equal colours.
pub(super) fn decode(jpeg: &[u8], max_bytes: usize) -> Result<Ppm, PictureError> {
    let jpeg_error = |error| PictureError::Jpeg(Box::new(error));
    // The decoder accepts a file without its last bytes.
    if !jpeg.windows(END.len()).rev().any(|pair| pair == END) {
        return Err(PictureError::Jpeg("its end is missing".into()));
    }
    let jpeg_with_segment = [&jpeg[..START_BYTES], &AVI_SEGMENT, &jpeg[START_BYTES..]].concat();
    // Strict mode refuses a truncated frame, instead of filling its end with grey.
    let options = DecoderOptions::default().set_strict_mode(true).jpeg_set_out_colorspace(RGB);
    let max_side = PictureSize::MAX_SIDE as usize;
    let options = options.set_max_width(max_side).set_max_height(max_side);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(&jpeg_with_segment), options);
    decoder.decode_headers().map_err(jpeg_error)?;
    let info = decoder.info().expect("the headers are decoded");
    if !matches!(info.components, 1 | 3) {
        return Err(PictureError::UnsupportedColours { components: info.components });
    }
    let size = PictureSize { width: info.width.into(), height: info.height.into() };
    Ppm::write(size, max_bytes, |pixels| decoder.decode_into(pixels).map_err(jpeg_error))
}
