//! Clients and what they trust.

use oci_client::client::{Certificate, CertificateEncoding, ClientConfig, ClientProtocol};
use reqwest::redirect::{Action, Attempt, Policy};

use super::Options;
use crate::error::Error;

const END: &str = "-----END CERTIFICATE-----";

/// The certificates of all bundles, one by one.
pub(super) fn certificates(options: &Options) -> Result<Vec<Vec<u8>>, Error> {
    let mut certificates = Vec::new();
    for bundle in &options.ca_pem {
        let before = certificates.len();
        let parts = bundle
            .split_inclusive(END)
            .filter(|part| part.ends_with(END));
        certificates.extend(parts.map(|part| part.as_bytes().to_vec()));
        if certificates.len() == before {
            return Err(setup("a CA bundle holds no certificate in PEM"));
        }
    }
    Ok(certificates)
}

/// The client for tokens. What would make a client of oci-client panic is found here.
pub(super) fn http(options: &Options, certificates: &[Vec<u8>]) -> Result<reqwest::Client, Error> {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        return Err(setup("the program has installed no crypto provider"));
    }
    // oci-client makes one with the system's certificates alone, whatever else it is given.
    reqwest::Client::builder().build().map_err(|_| {
        setup("the system has no trusted certificates: install `ca-certificates`, or name a bundle in SSL_CERT_FILE")
    })?;
    let read = |pem: &Vec<u8>| {
        reqwest::Certificate::from_pem(pem).map_err(|_| setup("a CA certificate cannot be read"))
    };
    let trusted = certificates
        .iter()
        .map(read)
        .collect::<Result<Vec<_>, _>>()?;
    let builder = reqwest::Client::builder().tls_certs_merge(trusted);
    let builder = builder
        .connect_timeout(options.connect_timeout)
        .redirect(Policy::custom(elsewhere))
        .user_agent(USER_AGENT);
    builder
        .build()
        .map_err(|_| setup("a CA certificate cannot be used"))
}

/// What is sent goes to the host that it is for: to another one only without a body (307 and 308 keep it;
/// the header with the password is left out by reqwest), and never in the clear after TLS.
fn elsewhere(attempt: Attempt<'_>) -> Action {
    let from = attempt.previous().last();
    let same = from.is_some_and(|from| from.origin() == attempt.url().origin());
    let clear =
        from.is_some_and(|from| from.scheme() == "https" && attempt.url().scheme() != "https");
    let whole = matches!(attempt.status().as_u16(), 307 | 308);
    if attempt.previous().len() <= REDIRECTS && (same || !clear && !whole) {
        attempt.follow()
    } else {
        attempt.stop()
    }
}

/// How many redirects are followed.
const REDIRECTS: usize = 5;

const USER_AGENT: &str = concat!("alustan/", env!("CARGO_PKG_VERSION"));

/// A client of oci-client: one for each session, since it never forgets credentials.
pub(super) fn images(
    options: &Options,
    certificates: &[Vec<u8>],
    insecure: bool,
) -> Result<oci_client::Client, Error> {
    let config = ClientConfig {
        protocol: if insecure {
            ClientProtocol::Http
        } else {
            ClientProtocol::Https
        },
        // One POST and one PUT: the one way of pushing that every registry must have.
        use_monolithic_push: true,
        extra_root_certificates: certificates
            .iter()
            .map(|pem| pem_certificate(pem))
            .collect(),
        connect_timeout: Some(options.connect_timeout),
        user_agent: USER_AGENT,
        ..ClientConfig::default()
    };
    oci_client::Client::try_from(config).map_err(|_| setup("the client cannot be made"))
}

fn pem_certificate(pem: &[u8]) -> Certificate {
    Certificate {
        encoding: CertificateEncoding::Pem,
        data: pem.to_vec(),
    }
}

fn setup(why: &str) -> Error {
    Error::Setup {
        why: why.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_without_a_crypto_provider_is_told_and_does_not_panic() {
        let error = http(&Options::default(), &[]).unwrap_err();
        assert!(error.to_string().contains("crypto provider"), "{error}");
    }

    #[test]
    fn bundles_are_split() {
        let one = format!("# c\n-----BEGIN CERTIFICATE-----\nAA==\n{END}\n");
        let options = |ca_pem| Options {
            ca_pem,
            ..Options::default()
        };
        assert_eq!(
            certificates(&options(vec![format!("{one}{one}"), one.clone()]))
                .unwrap()
                .len(),
            3
        );
        assert_eq!(certificates(&options(Vec::new())).unwrap().len(), 0);
        assert_eq!(
            certificates(&options(vec!["x".into()]))
                .unwrap_err()
                .reason(),
            "RegistryClientUnusable"
        );
        assert!(
            http(
                &Options::default(),
                &certificates(&options(vec![one])).unwrap()
            )
            .is_err()
        );
    }
}
