//! Configuration of modules, in HCL and JSON.
#![no_main]

use alustan_source::fuzzing::closure;

libfuzzer_sys::fuzz_target!(|text: &[u8]| {
    for name in ["main.tf", "main.tf.json"] {
        // At least the included file, and at most the files of the tree.
        if let Ok(files) = closure(name, text) {
            assert!((1..=4).contains(&files), "{files}");
        }
    }
});
