//! Flags for log lines, of the operator and of the page.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Flags for log lines on standard error.
#[derive(Clone, Debug, Args)]
pub(crate) struct LogFlags {
    /// Log level: error, info or debug, or a filter such as `info,kube=debug`.
    #[arg(long = "log-level", env = "ALUSTAN_LOG_LEVEL", default_value = "info")]
    pub(crate) level: String,
    /// File with another log level. Changes apply without a restart. If the file is missing or empty, --log-level applies.
    #[arg(long = "log-level-file", env = "ALUSTAN_LOG_LEVEL_FILE")]
    pub(crate) level_file: Option<PathBuf>,
    /// Format of log lines on standard error.
    #[arg(long = "log-format", env = "ALUSTAN_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub(crate) format: LogFormat,
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum LogFormat {
    /// Human-readable text.
    Text,
    /// One JSON object per line.
    Json,
}
