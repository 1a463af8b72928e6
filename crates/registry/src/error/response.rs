//! Failures from the responses of registries and from connection errors.

use serde::Deserialize;

use super::{Failure, short};

/// Body of an error response: <https://github.com/opencontainers/distribution-spec/blob/main/spec.md#error-codes>.
#[derive(Deserialize)]
struct Envelope {
    errors: Vec<Fault>,
}

#[derive(Deserialize)]
struct Fault {
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
}

const MANIFEST_BLOB_UNKNOWN: &str = "MANIFEST_BLOB_UNKNOWN";

/// Returns failure and message of an unsuccessful response. In general, the HTTP status determines the failure. The error code in `body`
/// determines it for statuses with several meanings, such as 400, and for status 404 if a blob is missing.
pub(crate) fn read_answer(status: u16, body: &[u8]) -> (Failure, String) {
    let envelope = read_envelope(body);
    let failure = match (Failure::of_status(status), &envelope) {
        (Failure::NotFound | Failure::Other, Some(envelope))
            if has_code(envelope, &[MANIFEST_BLOB_UNKNOWN]) =>
        {
            Failure::BlobMissing
        }
        (Failure::Other, Some(envelope)) => of_envelope(envelope),
        (failure, _) => failure,
    };
    let detail = envelope.map_or_else(
        || {
            short(&format!(
                "status {status} {}",
                String::from_utf8_lossy(body)
            ))
        },
        |envelope| words(&envelope),
    );
    (failure, detail)
}

/// Returns failure and message of an unsuccessful response to an upload, as [`read_answer`] does. Exception: returns
/// [`Failure::UploadLost`] if the registry has lost the upload session.
pub(crate) fn read_upload_answer(status: u16, body: &[u8]) -> (Failure, String) {
    let (failure, detail) = read_answer(status, body);
    let is_code = read_envelope(body).is_some_and(|envelope| has_code(&envelope, &UPLOAD_LOST));
    let is_lost = match failure {
        Failure::NotFound => true,
        Failure::Other => is_code || status == 416,
        _ => false,
    };
    (
        if is_lost {
            Failure::UploadLost
        } else {
            failure
        },
        detail,
    )
}

/// Error codes with which registries report a lost upload session. A registry that has kept only a part of the uploaded content returns
/// `DIGEST_INVALID`.
const UPLOAD_LOST: [&str; 3] = [
    "BLOB_UPLOAD_UNKNOWN",
    "BLOB_UPLOAD_INVALID",
    "DIGEST_INVALID",
];

fn read_envelope(body: &[u8]) -> Option<Envelope> {
    serde_json::from_slice::<Envelope>(body)
        .ok()
        .filter(|envelope| !envelope.errors.is_empty())
}

fn has_code(envelope: &Envelope, codes: &[&str]) -> bool {
    envelope
        .errors
        .iter()
        .any(|error| codes.contains(&&*error.code))
}

/// Substrings of rustls error messages that identify a TLS failure, in lower case.
const TLS_WORDS: [&str; 5] = [
    "certificate",
    "handshake",
    "received fatal alert",
    "corrupt message",
    "tls",
];

/// Returns failure and message of a connection error. The message contains no URLs, because their queries may contain tokens.
pub(crate) fn read_request(error: &reqwest::Error) -> (Failure, String) {
    let mut texts = Vec::new();
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        texts.push(inner.to_string());
        source = inner.source();
    }
    let last = texts
        .last()
        .map_or("the connection was interrupted", String::as_str);
    let host = error.url().and_then(reqwest::Url::host_str);
    let detail = short(unknown_host(last, host).as_deref().unwrap_or(last));
    let all = texts.join("; ").to_lowercase();
    let failure = if error.is_builder() {
        Failure::Other
    } else if TLS_WORDS.iter().any(|word| all.contains(word)) {
        Failure::Tls
    } else {
        Failure::Unreachable
    };
    (failure, detail)
}

/// Returns the message for the error `text` of the resolver, if DNS has no address for a name. Such a text contains the query in debug format:
/// `no records found for Query { name: Name("registry.example.com."), query_type: AAAA, query_class: IN }`. `host`: host name in the URL. The
/// query can have a search domain of `resolv.conf` in addition.
fn unknown_host(text: &str, host: Option<&str>) -> Option<String> {
    let (_, query) = text.split_once("no records found for Query { name: Name(\"")?;
    let (name, _) = query.split_once('"')?;
    let host = host
        .filter(|host| name.starts_with(host))
        .unwrap_or_else(|| name.trim_end_matches('.'));
    Some(format!(
        "the host name {host} does not exist; check the field that contains it, for example `containerRegistry.imageName`"
    ))
}

fn words(envelope: &Envelope) -> String {
    let texts: Vec<&str> = envelope
        .errors
        .iter()
        .map(|error| error.message.as_str())
        .collect();
    short(&texts.join("; "))
}

fn of_envelope(envelope: &Envelope) -> Failure {
    envelope
        .errors
        .iter()
        .map(|error| match &*error.code {
            "UNAUTHORIZED" => Failure::Unauthorized,
            "DENIED" => Failure::Forbidden,
            "TOOMANYREQUESTS" => Failure::RateLimited,
            "UNSUPPORTED" => Failure::Unsupported,
            "BLOB_UNKNOWN" | "MANIFEST_UNKNOWN" | "NAME_UNKNOWN" | "NOT_FOUND" => Failure::NotFound,
            MANIFEST_BLOB_UNKNOWN => Failure::BlobMissing,
            _ => Failure::Other,
        })
        .find(|failure| *failure != Failure::Other)
        .unwrap_or(Failure::Other)
}

#[cfg(test)]
mod tests;
