//! Logs to standard error. The log level is reloaded from a file, which is mounted from a `ConfigMap`. With a `ConfigMap`, Kubernetes RBAC controls
//! who may change the level. An HTTP endpoint would need its own credentials, and a signal would need a shell in the pod.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tracing::{info, warn};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

use crate::log_flags::{LogFlags, LogFormat};

/// Interval between reads of `--log-level-file`. The kubelet updates a mounted `ConfigMap` within about a minute.
const RELOAD_INTERVAL: Duration = Duration::from_secs(5);

/// Function that replaces the filter of log lines.
type SetFilter = Box<dyn Fn(EnvFilter) -> Result<()> + Send>;

/// Log level, and the file that overrides it.
pub(crate) struct LogLevel {
    /// Value of `--log-level`.
    flag: String,
    file: Option<PathBuf>,
    /// Level that was requested last. May be invalid.
    last: String,
    set: SetFilter,
}

/// Returns the filter `level`, without log lines of the client of kube, which contain the whole response of the API server if it cannot be parsed:
/// possibly a Secret.
fn filter(level: &str) -> Result<EnvFilter, ParseError> {
    EnvFilter::try_new(format!("{level},kube_client::client=off"))
}

/// Starts logging to standard error.
///
/// # Errors
/// If `--log-level` is invalid.
pub(crate) fn start(flags: &LogFlags) -> Result<LogLevel> {
    let flag = &flags.level;
    let filter = filter(flag).with_context(|| format!("--log-level: invalid filter {flag:?}"))?;
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let set: SetFilter = match flags.format {
        LogFormat::Text => {
            let logs = logs.with_ansi(false).with_filter_reloading();
            let handle = logs.reload_handle();
            logs.init();
            Box::new(move |filter| Ok(handle.reload(filter)?))
        }
        LogFormat::Json => {
            let logs = logs.json().with_filter_reloading();
            let handle = logs.reload_handle();
            logs.init();
            Box::new(move |filter| Ok(handle.reload(filter)?))
        }
    };
    Ok(LogLevel {
        flag: flag.clone(),
        file: flags.level_file.clone(),
        last: flag.clone(),
        set,
    })
}

impl LogLevel {
    /// Applies changes of `--log-level-file`, if it is set.
    pub(crate) async fn follow(mut self) {
        let Some(file) = self.file.clone() else {
            return;
        };
        let mut ticks = tokio::time::interval(RELOAD_INTERVAL);
        loop {
            ticks.tick().await;
            self.reload(&file);
        }
    }

    /// Applies the level in `file`, or `--log-level` if the file is missing or empty.
    fn reload(&mut self, file: &Path) {
        let wanted = match std::fs::read_to_string(file) {
            Ok(text) if !text.trim().is_empty() => text.trim().to_owned(),
            Ok(_) => self.flag.clone(),
            Err(error) if error.kind() == ErrorKind::NotFound => self.flag.clone(),
            Err(error) => {
                warn!(
                    %error,
                    file = %file.display(),
                    "failed to read --log-level-file; keeping the current log level"
                );
                return;
            }
        };
        if wanted == self.last {
            return;
        }
        let set = filter(&wanted).map_err(Into::into);
        match set.and_then(|filter| (self.set)(filter)) {
            Ok(()) => info!(level = wanted, "changed the log level"),
            Err(error) => {
                let error = error.to_string();
                warn!(
                    error,
                    level = wanted,
                    "ignored an invalid log level in --log-level-file"
                );
            }
        }
        self.last = wanted;
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use std::sync::Arc;

    use super::*;

    #[test]
    fn log_level_follows_its_file_and_resets_on_removal() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("level");
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let recorded = seen.clone();
        let mut level = LogLevel {
            flag: "info".to_owned(),
            file: None,
            last: "info".to_owned(),
            set: Box::new(move |filter| {
                let filter = filter.to_string();
                let without_client = filter.replace("kube_client::client=off,", "");
                assert_ne!(filter, without_client, "responses are not logged");
                recorded.lock().push(without_client);
                Ok(())
            }),
        };
        level.reload(&file);
        for text in ["debug\n", "debug", "not=a=level", "info,kube=debug", ""] {
            std::fs::write(&file, text).unwrap();
            level.reload(&file);
        }
        std::fs::write(&file, "error").unwrap();
        level.reload(&file);
        std::fs::remove_file(&file).unwrap();
        level.reload(&file);
        let seen = seen.lock();
        assert_eq!(*seen, ["debug", "kube=debug,info", "info", "error", "info"]);
    }
}
