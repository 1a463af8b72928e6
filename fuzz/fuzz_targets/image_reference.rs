//! Names and references of images: a parsed value survives a round trip through text.
#![no_main]

use alustan_registry::{ImageName, ImageRef};

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(name) = ImageName::parse(text) {
        assert_eq!(ImageName::parse(&name.to_string()).ok(), Some(name));
    }
    if let Ok(image) = ImageRef::parse(text) {
        assert_eq!(ImageRef::parse(&image.to_string()).ok(), Some(image));
    }
});
