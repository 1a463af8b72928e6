//! Archives in the place of a context: unpacking creates nothing outside of the folder.
#![no_main]

use std::fs;

use alustan_source::{UnpackLimits, unpack};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(temp) = tempfile::tempdir() else {
        return;
    };
    let folder = temp.path().join("in");
    if fs::create_dir(&folder).is_err() {
        return;
    }
    let _ = unpack(bytes, &folder, &UnpackLimits::default());
    let beside = fs::read_dir(temp.path()).map(Iterator::count);
    assert_eq!(beside.ok(), Some(1));
});
