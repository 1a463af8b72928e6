//! Flags of the page. Each flag can also be set by an environment variable.

use std::net::SocketAddr;
use std::path::PathBuf;

use alustan_page::ProxyHeaders;
use anyhow::{Result, ensure};
use axum::http::HeaderName;
use clap::{Parser, ValueEnum};

use crate::http::{ClientCertificates, FlagFile, TlsFiles};
use crate::log_flags::LogFlags;
use crate::page_url::PageUrl;

/// Serves a web page about Terraform resources and their runs.
#[derive(Clone, Debug, Parser)]
#[command(name = "alustan-controller page", version)]
pub(crate) struct PageArguments {
    /// Listen address. `[::]` is all addresses of IPv6 and IPv4, or of IPv4 only on a node without IPv6.
    #[arg(long, env = "ALUSTAN_PAGE_LISTEN", default_value = "[::]:8090")]
    pub(crate) listen: SocketAddr,
    /// URL at which browsers access the page, without a path: `https://HOST`, or `http://localhost:PORT` for kubectl port-forward. Requests with
    /// another host are refused.
    #[arg(long, env = "ALUSTAN_PAGE_URL")]
    pub(crate) url: PageUrl,
    /// Authentication of users (docs/page-sign-in.md): `token`, a bearer token that the API server accepts; or `proxy`, headers of a proxy with a
    /// client certificate.
    #[arg(long, env = "ALUSTAN_PAGE_SIGN_IN", value_enum, default_value_t = SignInMethod::Token)]
    pub(crate) sign_in: SignInMethod,
    /// File with one or two keys of cookies and session ids, 32 random bytes in base64 on each line. The first key encrypts; both
    /// decrypt. Changes apply without a restart.
    #[arg(long, env = "ALUSTAN_PAGE_COOKIE_KEY_FILE")]
    pub(crate) cookie_key_file: PathBuf,
    /// File with the certificate chain of the server (PEM). Without this flag, the page is served over plain HTTP. Changed files are reloaded.
    #[arg(long, env = "ALUSTAN_PAGE_TLS_CERT_FILE", requires = "tls_key_file")]
    pub(crate) tls_cert_file: Option<PathBuf>,
    /// File with the key of the server (PEM).
    #[arg(long, env = "ALUSTAN_PAGE_TLS_KEY_FILE", requires = "tls_cert_file")]
    pub(crate) tls_key_file: Option<PathBuf>,
    /// File with CA certificates (PEM). Only a proxy with a certificate that one of these CAs signed can authenticate users. Required by
    /// --sign-in=proxy.
    #[arg(long, env = "ALUSTAN_PAGE_CLIENT_CA_FILE", requires = "tls_cert_file")]
    pub(crate) client_ca_file: Option<PathBuf>,
    /// Header in which the proxy sends the name of the user.
    #[arg(
        long,
        env = "ALUSTAN_PAGE_USER_HEADER",
        default_value = "X-Forwarded-User"
    )]
    pub(crate) user_header: HeaderName,
    /// Header in which the proxy sends the groups of the user, separated by commas.
    #[arg(
        long,
        env = "ALUSTAN_PAGE_GROUP_HEADER",
        default_value = "X-Forwarded-Groups"
    )]
    pub(crate) group_header: HeaderName,
    /// User behind the proxy whom the page impersonates, so that the user can write. Other users can only read. May be repeated.
    #[arg(
        long = "impersonate-user",
        env = "ALUSTAN_PAGE_IMPERSONATE_USERS",
        value_delimiter = ','
    )]
    pub(crate) impersonate_users: Vec<String>,
    /// Group that the page impersonates for users of --impersonate-user who are its members. May be repeated.
    #[arg(
        long = "impersonate-group",
        env = "ALUSTAN_PAGE_IMPERSONATE_GROUPS",
        value_delimiter = ','
    )]
    pub(crate) impersonate_groups: Vec<String>,
    /// Namespace to show. Default: all namespaces. With this flag, a Role in the namespace suffices for the resources.
    #[arg(
        long,
        env = "ALUSTAN_PAGE_NAMESPACE",
        value_parser = clap::builder::NonEmptyStringValueParser::new()
    )]
    pub(crate) namespace: Option<String>,
    #[command(flatten)]
    pub(crate) log: LogFlags,
}

/// Authentication of users.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SignInMethod {
    /// Bearer token that the API server accepts.
    Token,
    /// Headers of a proxy with a client certificate.
    Proxy,
}

impl PageArguments {
    /// Checks combinations of flags.
    ///
    /// # Errors
    /// If a flag does not match `--sign-in`.
    pub(crate) fn check(&self) -> Result<()> {
        match self.sign_in {
            SignInMethod::Proxy => ensure!(
                self.client_ca_file.is_some(),
                "--sign-in=proxy requires --client-ca-file, --tls-cert-file and --tls-key-file: without a client certificate, every client could send \
                 the headers of the proxy"
            ),
            SignInMethod::Token => ensure!(
                self.client_ca_file.is_none()
                    && self.impersonate_users.is_empty()
                    && self.impersonate_groups.is_empty(),
                "--client-ca-file, --impersonate-user and --impersonate-group require --sign-in=proxy"
            ),
        }
        ensure!(
            self.impersonate_groups.is_empty() || !self.impersonate_users.is_empty(),
            "--impersonate-group requires --impersonate-user: the page impersonates groups only together with a listed user"
        );
        ensure!(
            self.user_header != self.group_header,
            "--user-header and --group-header must differ"
        );
        Ok(())
    }

    /// Returns the files of the TLS listener. `None`: the page is served over plain HTTP. Probes have no client certificate.
    pub(crate) fn tls_files(&self, listen_flag: &'static str) -> Option<TlsFiles> {
        let file = |flag: &'static str, path: &Option<PathBuf>| {
            path.clone().map(|path| FlagFile { flag, path })
        };
        Some(TlsFiles {
            listen_flag,
            certificate: file("--tls-cert-file", &self.tls_cert_file)?,
            key: file("--tls-key-file", &self.tls_key_file)?,
            client_ca: file("--client-ca-file", &self.client_ca_file)
                .map(|file| (file, ClientCertificates::Optional)),
        })
    }

    /// Returns the headers of the proxy.
    pub(crate) fn headers(&self) -> ProxyHeaders {
        ProxyHeaders {
            user: self.user_header.clone(),
            groups: self.group_header.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(more: &[&str]) -> Result<PageArguments> {
        let least = ["page", "--url=https://a.test", "--cookie-key-file=/k"];
        let arguments = PageArguments::try_parse_from(least.iter().chain(more))?;
        arguments.check()?;
        Ok(arguments)
    }

    #[test]
    fn token_sign_in_needs_no_further_flags() {
        let arguments = parsed(&[]).unwrap();
        assert_eq!(arguments.sign_in, SignInMethod::Token);
        assert!(arguments.tls_files("--listen").is_none());
        for wrong in [
            "--impersonate-user=a",
            "--impersonate-group=a",
            "--namespace=",
        ] {
            assert!(parsed(&[wrong]).is_err(), "{wrong}");
        }
        assert!(parsed(&["--tls-cert-file=/c"]).is_err());
        assert!(PageArguments::try_parse_from(["page", "--url=https://a.test"]).is_err());
        assert!(PageArguments::try_parse_from(["page", "--cookie-key-file=/k"]).is_err());
    }

    #[test]
    fn proxy_sign_in_requires_a_client_ca() {
        let tls = ["--tls-cert-file=/c", "--tls-key-file=/k"];
        let proxy = "--sign-in=proxy";
        for without in [&[proxy][..], &[proxy, tls[0], tls[1]]] {
            let error = parsed(without).unwrap_err().to_string();
            assert!(error.contains("--client-ca-file"), "{error}");
        }
        let all = [proxy, tls[0], tls[1], "--client-ca-file=/ca"];
        let arguments = parsed(&all).unwrap();
        let files = arguments.tls_files("--listen").unwrap();
        let (_, certificates) = files.client_ca.unwrap();
        assert_eq!(certificates, ClientCertificates::Optional);
        let with = |flag| parsed(&[&all[..], &[flag]].concat());
        assert!(with("--impersonate-group=a").is_err());
        assert!(with("--user-header=X-Forwarded-Groups").is_err());
        let users = with("--impersonate-user=a,b").unwrap().impersonate_users;
        assert_eq!(users, ["a", "b"]);
    }
}
