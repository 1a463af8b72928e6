//! Configuration of modules, as HCL and as JSON.
#![no_main]

use alustan_source::fuzzing::closure;

libfuzzer_sys::fuzz_target!(|text: &[u8]| {
    for name in ["main.tf", "main.tf.json"] {
        // The file itself is in it, the one that is included, and no more than there is.
        if let Ok(files) = closure(name, text) {
            assert!((1..=4).contains(&files), "{files}");
        }
    }
});
