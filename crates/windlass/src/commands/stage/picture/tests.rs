//! Tests with sample pictures, complete and broken.

use super::*;

const COLOUR: &[u8] = include_bytes!("samples/colour.jpg");
const PROGRESSIVE: &[u8] = include_bytes!("samples/progressive.jpg");
const GREY: &[u8] = include_bytes!("samples/grey.jpg");
const CMYK: &[u8] = include_bytes!("samples/cmyk.jpg");

const LIMIT: usize = 16 << 20;

fn work(payload: &[u8], size: Option<&str>, max_bytes: usize) -> Result<Bytes, String> {
    let size = size.map(|text| text.parse().expect("a size"));
    let outcome = Pictures { size, max_bytes }.work(Bytes::copy_from_slice(payload));
    outcome.map_err(|error| windlass_host::causes(&error))
}

fn decode(payload: &[u8]) -> Result<Bytes, String> {
    work(payload, None, LIMIT)
}

fn ppm(header: &str, pixels: &[u8]) -> Vec<u8> {
    [header.as_bytes(), pixels].concat()
}

/// Colour of a pixel of the picture that all samples show.
fn colour(x: usize, y: usize) -> [u8; 3] {
    [6 * x, 10 * y, 128].map(|colour| u8::try_from(colour).expect("of 8 bits"))
}

fn assert_is_the_sample(decoded: &[u8], tint: impl Fn([u8; 3]) -> [u8; 3]) {
    let pixels = decoded.strip_prefix(b"P6\n40 24\n255\n").expect("a header");
    assert_eq!(pixels.len(), 40 * 24 * 3);
    for (index, pixel) in pixels.chunks_exact(3).enumerate() {
        let expected = tint(colour(index % 40, index / 40));
        for (actual, expected) in pixel.iter().zip(expected) {
            assert!(actual.abs_diff(expected) <= 16, "pixel {index}: {pixel:?}, not {expected:?}");
        }
    }
}

/// Removes the JPEG's segments with this marker.
fn without_segments(jpeg: &[u8], marker: u8) -> Vec<u8> {
    let (mut remaining, mut position) = (jpeg[..2].to_vec(), 2);
    while jpeg[position + 1] != 0xda {
        let length = 2 + usize::from(u16::from_be_bytes([jpeg[position + 2], jpeg[position + 3]]));
        if jpeg[position + 1] != marker {
            remaining.extend(&jpeg[position..position + length]);
        }
        position += length;
    }
    remaining.extend(&jpeg[position..]);
    remaining
}

#[test]
fn frames_of_cameras_become_rgb_also_without_huffman_tables() {
    for jpeg in [COLOUR, PROGRESSIVE] {
        assert_is_the_sample(&decode(jpeg).expect("a picture"), |colour| colour);
    }
    let without_tables = without_segments(COLOUR, 0xc4);
    assert!(without_tables.len() < COLOUR.len());
    assert_eq!(decode(&without_tables), decode(COLOUR));
    assert_eq!(decode(&without_segments(&without_tables, 0xe0)), decode(COLOUR));
    // Cameras add padding to frames.
    assert_eq!(decode(&[COLOUR, &[0; 64]].concat()), decode(COLOUR));
}

#[test]
fn grey_has_equal_colours_and_cmyk_is_refused() {
    let grey = |[red, green, blue]: [u8; 3]| {
        let sum = 299 * u32::from(red) + 587 * u32::from(green) + 114 * u32::from(blue);
        [u8::try_from(sum / 1000).expect("of 8 bits"); 3]
    };
    assert_is_the_sample(&decode(GREY).expect("a picture"), grey);
    let message =
        "is a JPEG of 4 colours: only grey and the three colours of cameras are supported";
    assert_eq!(decode(CMYK), Err(message.to_owned()));
}

#[test]
fn a_ppm_passes_unchanged_and_a_broken_one_is_refused_with_the_reason() {
    let pixels = [7; 2 * 3 * 3];
    for header in ["P6\n2 3\n255\n", "P6 2 3 255 ", "P6\n# by a camera\n2 # wide\n3\n255\n"] {
        let whole = ppm(header, &pixels);
        assert_eq!(decode(&whole), Ok(whole.into()), "{header:?}");
    }
    for (broken, fault) in [
        (ppm("P6\n2 3\n255\n", &pixels[1..]), "2x3 pixels need 18 bytes, and 17 follow its header"),
        (ppm("P6\n2 3\n255\n\n", &pixels), "2x3 pixels need 18 bytes, and 19 follow its header"),
        (ppm("P6\n2 3\n65535\n", &pixels), "its maximum value is not a number from 255 to 255"),
        (ppm("P6\n0 3\n255\n", &[]), "its width is not a number from 1 to 16384"),
        (ppm("P6\n2 99999\n255\n", &[]), "its height is not a number from 1 to 16384"),
        (ppm("P6", &[]), "its width is not a number from 1 to 16384"),
        (ppm("P6\n2 3\n255", &[]), "2x3 pixels need 18 bytes, and 0 follow its header"),
    ] {
        assert_eq!(decode(&broken), Err(format!("is not a complete PPM: {fault}")));
    }
}

#[test]
fn other_payloads_are_named_by_their_first_bytes() {
    let unknown = |begin| Err(format!("is neither JPEG nor PPM: begins with \"{begin}\""));
    assert_eq!(decode(b"\x89PNG\r\n\x1a\n and more"), unknown(r"\x89PNG\r\n\x1a\n"));
    assert_eq!(decode(b"P5\n1 1\n255\n\0"), unknown(r"P5\n1 1\n2"));
    assert_eq!(decode(b""), unknown(""));
}

#[test]
fn a_size_beyond_the_limit_is_refused_before_it_is_allocated() {
    let sof = COLOUR.windows(2).position(|pair| pair == [0xff, 0xc0]).expect("a frame");
    let mut bomb = COLOUR.to_vec();
    bomb[sof + 5..sof + 9].copy_from_slice(&[0x40, 0, 0x40, 0]);
    let message =
        "has 16384x16384 pixels, which are 768MiB of RGB; the limit is 16MiB (--max-payload)";
    assert_eq!(decode(&bomb), Err(message.to_owned()));
    bomb[sof + 5] = 0xff;
    assert!(decode(&bomb).expect_err("beyond any camera").starts_with("is not a complete JPEG: "));
    let message =
        "has 4000x4000 pixels, which are 46MiB of RGB; the limit is 16MiB (--max-payload)";
    assert_eq!(work(COLOUR, Some("4000x4000"), LIMIT), Err(message.to_owned()));
    assert!(work(COLOUR, None, 40 * 24 * 3).is_err(), "the header counts");
}

/// Cuts the file at every byte, and changes every byte: the result is an error, or a picture of the declared size.
#[test]
fn a_broken_jpeg_fails_or_is_a_complete_picture_and_never_panics() {
    for jpeg in [COLOUR, PROGRESSIVE, GREY] {
        for cut in 2..jpeg.len() {
            let outcome = decode(&jpeg[..cut]);
            assert!(outcome.is_err(), "cut to {cut} of {} bytes", jpeg.len());
        }
        for position in 2..jpeg.len() {
            for mask in [0x01, 0x80, 0xff] {
                let mut broken = jpeg.to_vec();
                broken[position] ^= mask;
                if let Ok(picture) = decode(&broken) {
                    Ppm::read(picture).expect("a complete PPM");
                }
            }
        }
    }
}

/// Input of Pillow 13 for the expected results below: 5 by 3 pixels.
fn odd_picture() -> Vec<u8> {
    let pixel = |x: u32, y: u32| [x * 53 + y * 17, x * 91 + y * 29, x * 7 + y * 101];
    let pixels = (0..3).flat_map(|y| (0..5).flat_map(move |x| pixel(x, y)));
    let pixels: Vec<_> =
        pixels.map(|colour| u8::try_from(colour % 256).expect("of 8 bits")).collect();
    ppm("P6\n5 3\n255\n", &pixels)
}

#[test]
fn a_resized_picture_equals_the_result_of_pillow() {
    let smaller = [59, 90, 45, 165, 98, 59, 81, 126, 171, 187, 134, 185];
    assert_eq!(
        work(&odd_picture(), Some("2x2"), LIMIT),
        Ok(ppm("P6\n2 2\n255\n", &smaller).into())
    );
    assert_eq!(
        work(&odd_picture(), Some("1x1"), LIMIT),
        Ok(ppm("P6\n1 1\n255\n", &[123, 117, 115]).into())
    );
    let narrow_and_high = [
        23, 39, 3, 106, 125, 14, 189, 69, 25, 30, 51, 43, 113, 137, 54, 196, 81, 65, 40, 68, 104,
        123, 154, 115, 206, 98, 126, 50, 85, 165, 133, 171, 176, 216, 115, 187, 57, 97, 205, 140,
        183, 216, 223, 127, 227,
    ];
    let expected = ppm("P6\n3 5\n255\n", &narrow_and_high);
    assert_eq!(work(&odd_picture(), Some("3x5"), LIMIT), Ok(expected.into()));
    assert_eq!(work(&odd_picture(), Some("5x3"), LIMIT), Ok(odd_picture().into()), "its own size");
}

#[test]
fn any_size_of_one_colour_keeps_the_colour() {
    let plain = ppm("P6\n7 5\n255\n", &[255, 0, 77].repeat(35));
    for (width, height) in [(1, 1), (3, 9), (64, 2), (7, 500), (333, 1)] {
        let resized = work(&plain, Some(&format!("{width}x{height}")), LIMIT).expect("a picture");
        let expected =
            ppm(&format!("P6\n{width} {height}\n255\n"), &[255, 0, 77].repeat(width * height));
        assert_eq!(resized, expected);
    }
}
