//! HTTP clients and trusted certificates.

use std::io::Write as _;

use reqwest::{
    StatusCode, Url,
    redirect::{Action, Attempt, Policy},
};

use tempfile::{NamedTempFile, TempPath};

use super::options::Options;
use crate::error::Error;

const END: &str = "-----END CERTIFICATE-----";

/// Returns the certificates of all bundles. Each element contains one PEM block.
pub(super) fn certificates(options: &Options) -> Result<Vec<Vec<u8>>, Error> {
    let mut certificates = Vec::new();
    for bundle in &options.ca_pem {
        let before = certificates.len();
        certificates.extend(
            bundle
                .split_inclusive(END)
                .filter(|part| part.ends_with(END))
                .map(|part| part.as_bytes().to_vec()),
        );
        if certificates.len() == before {
            return Err(setup("a CA bundle contains no PEM certificate"));
        }
    }
    Ok(certificates)
}

/// Writes the CA bundle of credential helpers: the certificates of the system, followed by those of `options`. `None` without certificates
/// in `options`: helpers then trust the certificates of the system.
pub(super) fn helper_certificates(options: &Options) -> Result<Option<TempPath>, Error> {
    if options.ca_pem.is_empty() {
        return Ok(None);
    }
    let system = openssl_probe::probe().cert_file;
    let system = system.and_then(|file| std::fs::read_to_string(file).ok());
    let bundles: Vec<&str> = system
        .iter()
        .chain(&options.ca_pem)
        .map(|bundle| bundle.trim())
        .collect();
    let file = NamedTempFile::with_prefix("alustan-ca-").and_then(|mut file| {
        file.write_all(bundles.join("\n").as_bytes())?;
        Ok(file.into_temp_path())
    });
    let file = file.map_err(|error| {
        setup(&format!(
            "failed to write the CA bundle of credential helpers to {}: {error}",
            std::env::temp_dir().display()
        ))
    })?;
    Ok(Some(file))
}

/// Builds the HTTP client for token requests.
pub(super) fn tokens(
    options: &Options,
    certificates: &[Vec<u8>],
) -> Result<reqwest::Client, Error> {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        return Err(setup("the program has no TLS crypto provider installed"));
    }
    reqwest::Client::builder().build().map_err(|_| {
        setup(
            "the system has no trusted certificates: install `ca-certificates`, or set \
             SSL_CERT_FILE to a bundle",
        )
    })?;
    http(options, certificates, elsewhere)
}

/// Builds the HTTP client that reads manifests and blobs.
pub(super) fn reads(options: &Options, certificates: &[Vec<u8>]) -> Result<reqwest::Client, Error> {
    http(options, certificates, to_storage)
}

/// Builds the HTTP client that pushes and deletes manifests and blobs.
pub(super) fn writes(
    options: &Options,
    certificates: &[Vec<u8>],
) -> Result<reqwest::Client, Error> {
    http(options, certificates, within_the_registry)
}

fn http(
    options: &Options,
    certificates: &[Vec<u8>],
    redirects: Rule,
) -> Result<reqwest::Client, Error> {
    let read = |pem: &Vec<u8>| {
        reqwest::Certificate::from_pem(pem).map_err(|_| setup("invalid CA certificate"))
    };
    let trusted = certificates
        .iter()
        .map(read)
        .collect::<Result<Vec<_>, _>>()?;
    let builder = reqwest::Client::builder()
        .tls_certs_merge(trusted)
        .connect_timeout(options.connect_timeout)
        .redirect(Policy::custom(move |attempt| follow_if(attempt, redirects)))
        .user_agent(USER_AGENT);
    builder
        .build()
        .map_err(|_| setup("failed to configure the HTTP client with the CA certificates"))
}

/// Decides whether the HTTP client follows a redirect from the first URL to the second URL with the given status.
type Rule = fn(&Url, &Url, StatusCode) -> bool;

/// Permits redirects of token requests, except two kinds of redirects to another origin: with status 307 or 308, which keep the request
/// body, and from https to http. On a redirect to another origin, reqwest removes the `Authorization` header.
fn elsewhere(from: &Url, to: &Url, status: StatusCode) -> bool {
    from.origin() == to.origin() || !leaves_tls(from, to) && !keeps_request(status)
}

/// Permits redirects of reads, except from https to http. Registries redirect requests for blobs to their storage, with any status. reqwest
/// removes credentials if host, port or scheme change.
fn to_storage(from: &Url, to: &Url, _: StatusCode) -> bool {
    !leaves_tls(from, to)
}

/// Permits a redirect of a write only within the same origin, and only if it keeps method and body: the response to a request with another
/// method or without a body does not prove that the registry has stored the content.
fn within_the_registry(from: &Url, to: &Url, status: StatusCode) -> bool {
    from.origin() == to.origin() && keeps_request(status)
}

fn leaves_tls(from: &Url, to: &Url) -> bool {
    from.scheme() == "https" && to.scheme() != "https"
}

/// Whether a redirect with `status` keeps method and body of every request.
fn keeps_request(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT
    )
}

/// Follows at most [`REDIRECTS`] redirects that `rule` permits.
fn follow_if(attempt: Attempt<'_>, rule: Rule) -> Action {
    let is_allowed = attempt
        .previous()
        .last()
        .is_some_and(|from| rule(from, attempt.url(), attempt.status()));
    if is_allowed && attempt.previous().len() <= REDIRECTS {
        attempt.follow()
    } else {
        attempt.stop()
    }
}

/// Maximum number of redirects.
const REDIRECTS: usize = 5;

const USER_AGENT: &str = concat!("alustan/", env!("CARGO_PKG_VERSION"));

fn setup(why: &str) -> Error {
    Error::Setup {
        why: why.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("https://r/", "https://s/", true)]
    #[case("http://r/", "https://r/", true)]
    #[case("http://r/", "http://s/", true)]
    #[case("https://r/", "http://r/", false)]
    #[case("https://r/", "http://s/", false)]
    fn redirects_of_blobs_never_leave_tls(
        #[case] from: &str,
        #[case] to: &str,
        #[case] expected: bool,
    ) {
        let [from, to] = [from, to].map(|url| Url::parse(url).unwrap());
        for status in [301, 302, 303, 307, 308] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(to_storage(&from, &to, status), expected, "{status}");
        }
    }

    #[rstest]
    #[case("https://r/a", 307, true)]
    #[case("https://r/a", 308, true)]
    #[case("https://r/a", 301, false)]
    #[case("https://r/a", 302, false)]
    #[case("https://r/a", 303, false)]
    #[case("https://s/", 307, false)]
    #[case("https://r:5000/", 307, false)]
    #[case("http://r/", 308, false)]
    fn redirects_of_writes_stay_in_the_registry(
        #[case] to: &str,
        #[case] status: u16,
        #[case] expected: bool,
    ) {
        let [from, to] = ["https://r/", to].map(|url| Url::parse(url).unwrap());
        let status = StatusCode::from_u16(status).unwrap();
        assert_eq!(within_the_registry(&from, &to, status), expected);
    }

    #[test]
    fn missing_crypto_provider_is_an_error() {
        let error = tokens(&Options::default(), &[]).unwrap_err();
        assert!(error.to_string().contains("crypto provider"), "{error}");
    }

    #[test]
    fn ca_bundles_are_split_into_certificates() {
        let certificate = format!("# c\n-----BEGIN CERTIFICATE-----\nAA==\n{END}\n");
        let options = |ca_pem| Options {
            ca_pem,
            ..Options::default()
        };
        assert_eq!(
            certificates(&options(vec![
                format!("{certificate}{certificate}"),
                certificate.clone()
            ]))
            .unwrap()
            .len(),
            3
        );
        assert_eq!(certificates(&options(Vec::new())).unwrap().len(), 0);
        assert_eq!(
            certificates(&options(vec!["x".into()]))
                .unwrap_err()
                .reason()
                .as_str(),
            "RegistryClientUnusable"
        );
        assert!(
            tokens(
                &Options::default(),
                &certificates(&options(vec![certificate])).unwrap()
            )
            .is_err()
        );
    }
}
