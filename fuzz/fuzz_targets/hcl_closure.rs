//! Configuration of modules in HCL and JSON: the closure of any text is computed or refused.
#![no_main]

use alustan_source::fuzzing::closure;

libfuzzer_sys::fuzz_target!(|text: &[u8]| {
    for name in ["main.tf", "main.tf.json"] {
        // The closure has at least the included file `b/main.tf`, and at most all entries of the tree.
        if let Ok(files) = closure(name, text) {
            assert!((1..=4).contains(&files), "{files}");
        }
    }
});
