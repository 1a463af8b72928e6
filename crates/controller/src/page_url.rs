//! URL at which browsers access the page.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use axum::http::Uri;

/// URL at which browsers access the page: `https`, or `http` with a loopback host, for `kubectl port-forward`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PageUrl {
    https: bool,
    host: String,
    port: Option<u16>,
}

impl PageUrl {
    /// Whether browsers access the page over HTTPS.
    pub(crate) fn is_https(&self) -> bool {
        self.https
    }

    /// Returns the URL of the page of resource `name` in `namespace`. Names of Kubernetes objects need no escapes.
    pub(crate) fn of_resource(&self, namespace: &str, name: &str) -> String {
        format!("{self}/ns/{namespace}/tf/{name}")
    }

    /// Returns the values of header `Host` that browsers send.
    pub(crate) fn hosts(&self) -> Vec<String> {
        let default = if self.https { 443 } else { 80 };
        let port = self.port.unwrap_or(default);
        let mut hosts = vec![format!("{}:{port}", self.host)];
        if port == default {
            hosts.push(self.host.clone());
        }
        hosts
    }
}

impl fmt::Display for PageUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.https { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.host)?;
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

impl FromStr for PageUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || {
            format!(
                "invalid URL {text:?}: expected https://HOST or http://localhost:PORT without a path"
            )
        };
        let uri: Uri = text.parse().map_err(|_| invalid())?;
        let authority = uri.authority().ok_or_else(invalid)?;
        let has_more = uri.path() != "/" || uri.query().is_some();
        let is_host = !authority.host().is_empty() && !authority.as_str().contains('@');
        if has_more || !is_host {
            return Err(invalid());
        }
        let https = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(invalid()),
        };
        let host = authority.host().to_ascii_lowercase();
        if !https && !is_loopback(&host) {
            return Err(format!(
                "invalid URL {text:?}: plain HTTP is supported for loopback addresses only, because browsers would send the credentials of users \
                 without encryption"
            ));
        }
        Ok(Self {
            https,
            host,
            port: authority.port_u16(),
        })
    }
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost"
        || address
            .parse()
            .is_ok_and(|address: IpAddr| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_include_the_port_unless_it_is_the_default() {
        for (url, https, hosts) in [
            (
                "https://Page.example.com/",
                true,
                &["page.example.com:443", "page.example.com"][..],
            ),
            ("https://page.test:8443", true, &["page.test:8443"]),
            ("http://localhost:8090", false, &["localhost:8090"]),
            ("http://127.0.0.1", false, &["127.0.0.1:80", "127.0.0.1"]),
            ("http://[::1]:80", false, &["[::1]:80", "[::1]"]),
        ] {
            let parsed: PageUrl = url.parse().unwrap();
            assert_eq!(parsed.is_https(), https);
            assert_eq!(parsed.hosts(), hosts);
        }
        let url: PageUrl = "https://page.test:8443/".parse().unwrap();
        assert_eq!(
            url.of_resource("team", "web"),
            "https://page.test:8443/ns/team/tf/web"
        );
    }

    #[test]
    fn urls_without_encryption_or_with_a_path_are_refused() {
        for (url, message) in [
            ("http://page.test", "loopback"),
            ("http://localhost.page.test", "loopback"),
            ("https://page.test/tf", "without a path"),
            ("https://page.test/?a", "without a path"),
            ("https://user@page.test", "without a path"),
            ("page.test", "without a path"),
            ("ftp://page.test", "without a path"),
            ("", "without a path"),
        ] {
            let error = url.parse::<PageUrl>().unwrap_err();
            assert!(error.contains(message), "{error}");
        }
    }
}
