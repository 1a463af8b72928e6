//! The module: its configuration files and its variables.

pub mod files;
pub mod variables;
