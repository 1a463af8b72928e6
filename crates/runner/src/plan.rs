//! Plans of the engine: their changes, ids, encrypted files and texts.

pub mod changes;
pub mod file;
pub mod id;
pub mod text;
mod values;
