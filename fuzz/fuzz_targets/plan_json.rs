//! Plans in the JSON format of the engine: each accepted plan has a digest.
#![no_main]

use alustan_runner::plan::changes::summary;
use alustan_runner::secrets::redact::Redactor;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(summary) = summary(bytes, b"key", &Redactor::default()) {
        assert_eq!(summary.set.digest.len(), 64);
    }
});
