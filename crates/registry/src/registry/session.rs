//! Builds requests to a repository with the authorization of a session.

use std::time::Instant;

use reqwest::{Client, Method, RequestBuilder, Url};

use crate::{auth::Authorization, name::is_docker_hub};

/// A repository with the authorization of one credential.
pub(super) struct Session {
    pub(super) reads: Client,
    pub(super) writes: Client,
    pub(super) base: String,
    pub(super) repository: String,
    pub(super) authorization: Authorization,
    /// Time after which a new token is requested.
    pub(super) renew_at: Instant,
}

impl Session {
    /// Builds a request for `path` in the API of the repository.
    pub(super) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let url = format!("{}/v2/{}/{path}", self.base, self.repository);
        self.authorize(self.client(&method).request(method, url))
    }

    /// Builds a request for a URL that the registry returned. Adds the authorization only if the URL belongs to the registry.
    pub(super) fn request_to(&self, method: Method, url: Url) -> RequestBuilder {
        let is_own = is_of_registry(&self.base, &url);
        let request = self.client(&method).request(method, url);
        if is_own {
            self.authorize(request)
        } else {
            request
        }
    }

    fn client(&self, method: &Method) -> &Client {
        if method.is_safe() {
            &self.reads
        } else {
            &self.writes
        }
    }

    fn authorize(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.authorization {
            Authorization::None => request,
            Authorization::Basic(user, password) => request.basic_auth(user, Some(password)),
            Authorization::Bearer(token) => request.bearer_auth(token),
        }
    }
}

/// Whether `url` belongs to the registry at `base`.
pub(super) fn is_of_registry(base: &str, url: &Url) -> bool {
    Url::parse(base).is_ok_and(|base| is_same_registry(&base, url))
}

/// Whether both URLs have the same scheme, host and port. Treats all hosts of Docker Hub as the same host.
fn is_same_registry(base: &Url, url: &Url) -> bool {
    let is_hub = |url: &Url| {
        let host = url.host_str().is_some_and(is_docker_hub);
        host && url.port_or_known_default() == Some(443) && url.scheme() == "https"
    };
    base.origin() == url.origin() || is_hub(base) && is_hub(url)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("https://r.example", "https://r.example/v2/x", true)]
    #[case("https://r.example", "https://r.example:443/", true)]
    #[case("https://r.example", "https://r.example:5000/", false)]
    #[case("https://r.example", "http://r.example/", false)]
    #[case("https://r.example", "https://s.r.example/", false)]
    #[case("https://index.docker.io", "https://registry-1.docker.io/v2/", true)]
    #[case("https://index.docker.io", "http://registry-1.docker.io/v2/", false)]
    #[case("https://r.example", "https://registry-1.docker.io/v2/", false)]
    fn only_the_registry_gets_credentials(
        #[case] base: &str,
        #[case] url: &str,
        #[case] is_own: bool,
    ) {
        let [base, url] = [base, url].map(|text| Url::parse(text).unwrap());
        assert_eq!(is_same_registry(&base, &url), is_own);
    }
}
