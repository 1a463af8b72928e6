//! Secret values: encryption, and redaction of output.

pub mod encryption;
pub mod redact;
pub mod values;
