//! The module: its configuration files and its variables.

pub mod declarations;
pub mod environment;
pub mod files;
pub mod manifest;
pub mod tfvars;
pub mod variables;
