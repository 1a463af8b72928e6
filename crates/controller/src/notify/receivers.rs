//! Receivers of `--notifications`, which get notifications about all resources.

use std::io::ErrorKind;
use std::path::PathBuf;

use alustan_api::NotificationEvent;
use anyhow::{Context as _, anyhow};
use parking_lot::Mutex;
use reqwest::Url;
use serde::Deserialize;
use tracing::error;

use crate::standard_webhooks::SharedSecret;

/// Receiver of notifications about all resources.
#[derive(Clone, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Receiver {
    /// URL of the receiver.
    pub(super) url: String,
    /// Signing secret.
    #[serde(default)]
    secret: Option<String>,
    /// Events to send. Empty: all events.
    #[serde(default)]
    events: Vec<NotificationEvent>,
}

impl Receiver {
    /// Parses a JSON list of receivers.
    fn parse(text: &str) -> anyhow::Result<Vec<Self>> {
        let receivers: Vec<Self> = serde_json::from_str(text).context(
            r#"the content is not of the form [{"url": "https://…", "secret": "whsec_…", "events": ["Failed"]}]"#,
        )?;
        for receiver in &receivers {
            let (url, _) = receiver.url_and_secret().map_err(anyhow::Error::msg)?;
            parse_url(&url).map_err(anyhow::Error::msg)?;
        }
        Ok(receivers)
    }

    pub(super) fn receives(&self, event: NotificationEvent) -> bool {
        self.events.is_empty() || self.events.contains(&event)
    }

    /// Returns the URL and the signing secret.
    pub(super) fn url_and_secret(&self) -> Result<(String, Option<SharedSecret>), String> {
        let secret = self.secret.as_ref();
        let secret = secret.map(|secret| SharedSecret::parse(secret.as_bytes()));
        let secret = secret
            .transpose()
            .map_err(|cause| format!("the secret {cause}"))?;
        Ok((self.url.clone(), secret))
    }
}

/// Content of the file of `--notifications`, or the error of reading it.
type FileContent = Result<String, ErrorKind>;

/// Receivers in the file of `--notifications`. The file is read for each use, because a mounted Secret changes while the operator runs.
pub(super) struct ReceiversFile {
    file: Option<PathBuf>,
    /// Last content of the file, and the last valid receivers.
    last: Mutex<(Option<FileContent>, Vec<Receiver>)>,
}

impl ReceiversFile {
    pub(super) fn new(file: Option<PathBuf>) -> Self {
        let last = Mutex::default();
        Self { file, last }
    }

    /// Returns the receivers that are now in the file, or none if it is missing. If it is invalid, logs an error and keeps the
    /// previous receivers.
    pub(super) fn now(&self) -> Vec<Receiver> {
        let Some(file) = &self.file else {
            return Vec::new();
        };
        let content = std::fs::read_to_string(file).map_err(|error| error.kind());
        let mut last = self.last.lock();
        if last.0.as_ref() == Some(&content) {
            return last.1.clone();
        }
        let parsed = match &content {
            Ok(text) => Receiver::parse(text),
            Err(ErrorKind::NotFound) => Ok(Vec::new()),
            Err(kind) => Err(anyhow!("{kind}")),
        };
        match parsed {
            Ok(receivers) => last.1 = receivers,
            Err(error) => {
                let (file, error) = (file.display(), format!("{error:#}"));
                error!(%file, error, "--notifications is invalid; keeping the previous receivers");
            }
        }
        last.0 = Some(content);
        last.1.clone()
    }
}

/// Parses a URL. The error does not contain the URL, which may be a secret.
pub(super) fn parse_url(url: &str) -> Result<Url, String> {
    let message = "invalid URL: expected https://host/path";
    let url = Url::parse(url).map_err(|error| format!("{message}: {error}"))?;
    let is_supported = matches!(url.scheme(), "http" | "https") && url.has_host();
    if is_supported {
        Ok(url)
    } else {
        Err(message.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receivers_are_parsed_with_their_events() {
        let text =
            r#"[{"url": "https://a.test/x", "events": ["Failed"]}, {"url": "http://b.test"}]"#;
        let receivers = Receiver::parse(text).unwrap();
        assert!(receivers[0].receives(NotificationEvent::Failed));
        assert!(!receivers[0].receives(NotificationEvent::Stalled));
        assert!(
            NotificationEvent::ALL
                .iter()
                .all(|event| receivers[1].receives(*event))
        );
    }

    #[test]
    fn error_of_an_invalid_receiver_hides_its_address() {
        for text in [
            "",
            "{}",
            r#"[{"url": 1}]"#,
            r#"[{"url": "https://a.test", "event": []}]"#,
            r#"[{"url": "https://a.test", "secret": " "}]"#,
            r#"[{"url": "https://a.test", "secret": "whsec_no base64"}]"#,
        ] {
            assert!(Receiver::parse(text).is_err(), "{text}");
        }
        for url in ["file:///etc/passwd", "s3cret", "ftp://s3cret.test"] {
            let error = parse_url(url).unwrap_err();
            assert!(
                error.contains("https://host/path") && !error.contains("s3cret"),
                "{error}"
            );
        }
    }

    #[test]
    fn receivers_file_is_reread_and_optional() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("places.json");
        let receivers = ReceiversFile::new(Some(file.clone()));
        let urls = || {
            receivers
                .now()
                .into_iter()
                .map(|receiver| receiver.url)
                .collect::<Vec<_>>()
        };
        assert!(urls().is_empty());
        for url in ["https://a.test", "https://b.test"] {
            std::fs::write(&file, format!(r#"[{{"url": "{url}"}}]"#)).unwrap();
            assert_eq!(urls(), [url]);
        }
        std::fs::write(&file, "[{").unwrap();
        assert_eq!(urls(), ["https://b.test"], "a slip ends nothing");
        std::fs::remove_file(&file).unwrap();
        assert!(urls().is_empty());
        assert!(ReceiversFile::new(None).now().is_empty());
    }
}
