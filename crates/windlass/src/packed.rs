//! Texts that the build script packs; most processes never read them.

use miniz_oxide::inflate::decompress_to_vec;

pub(crate) fn unpack_text(packed: &[u8]) -> String {
    let text = decompress_to_vec(packed).expect("the build script compressed it");
    String::from_utf8(text).expect("the build script compressed UTF-8 text")
}
