//! CA certificates that the operator passes to each pod, in addition to the CA certificates of the image.

use std::fs;
use std::io;
use std::path::Path;

use crate::paths::Vars;

/// Environment variable with CA certificates in PEM format, set by the operator in each pod.
pub const BUNDLE: &str = "ALUSTAN_CA_BUNDLE";

/// Locations of the CA bundle in Linux distributions.
const SYSTEM: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
];

/// Environment variables from which programs read the path of a CA bundle: Go and OpenSSL, git, curl, Python (also the CLI of Azure), SDKs
/// and CLI of AWS, the CLI of Google Cloud, Node.js (also CDKTF).
const READERS: &[&str] = &[
    "SSL_CERT_FILE",
    "GIT_SSL_CAINFO",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "AWS_CA_BUNDLE",
    "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
    "NODE_EXTRA_CA_CERTS",
];

/// Writes the CA certificates of the image and of the operator to `file`. Returns the environment variables with the path of `file`.
/// Without certificates of the operator, returns no variables and writes no file.
pub fn write_bundle(vars: &Vars, file: &Path) -> io::Result<Vars> {
    let Some(extra) = vars.get(BUNDLE).filter(|text| !text.trim().is_empty()) else {
        return Ok(Vars::new());
    };
    let own = vars.get("SSL_CERT_FILE").map(String::as_str);
    let trusted = own
        .into_iter()
        .chain(SYSTEM.iter().copied())
        .find_map(|path| fs::read_to_string(path).ok());
    fs::write(
        file,
        format!(
            "{}\n{}\n",
            trusted.unwrap_or_default().trim_end(),
            extra.trim()
        ),
    )?;
    let path = file.to_string_lossy();
    let unset = READERS
        .iter()
        .filter(|name| **name == "SSL_CERT_FILE" || !vars.contains_key(**name));
    Ok(unset
        .map(|name| ((*name).to_owned(), path.to_string()))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operator_certificates_extend_those_of_the_image() {
        let directory = tempfile::tempdir().unwrap();
        let (system, file) = (
            directory.path().join("system"),
            directory.path().join("both"),
        );
        fs::write(&system, "SYSTEM").unwrap();
        let vars = Vars::from([
            (BUNDLE.to_owned(), "EXTRA\n".to_owned()),
            ("SSL_CERT_FILE".to_owned(), system.display().to_string()),
            ("GIT_SSL_CAINFO".to_owned(), "/own".to_owned()),
        ]);
        let environment = write_bundle(&vars, &file).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "SYSTEM\nEXTRA\n");
        assert_eq!(environment["SSL_CERT_FILE"], file.display().to_string());
        assert!(!environment.contains_key("GIT_SSL_CAINFO"));
        assert_eq!(environment.len(), READERS.len() - 1);
        assert!(environment.contains_key("NODE_EXTRA_CA_CERTS"));
        assert!(
            write_bundle(&Vars::new(), &directory.path().join("none"))
                .unwrap()
                .is_empty()
        );
    }
}
