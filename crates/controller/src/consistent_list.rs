//! Consistency of streamed lists.

use axum::http::Request;
use axum::http::uri::PathAndQuery;

/// Parameter of a watch that streams the existing objects.
const STREAMED: &str = "sendInitialEvents=true";

/// Parameter with which an API server may answer from an outdated watch cache.
const ANY_VERSION: &str = "resourceVersion=0";

/// Removes `resourceVersion=0` from requests for a streamed list, so that the list is as recent as a list in pages: the API server waits until its
/// watch cache is up to date (<https://kubernetes.io/docs/reference/using-api/api-concepts/#semantics-for-watch>). The watcher of kube-runtime
/// always sends the parameter. With an outdated list, an operator that starts beside a lagging API server would apply an earlier configuration.
pub(crate) fn without_version<B>(mut request: Request<B>) -> Request<B> {
    let query = request.uri().query().unwrap_or_default();
    if !query.split('&').any(|parameter| parameter == STREAMED) {
        return request;
    }
    let kept: Vec<&str> = query
        .split('&')
        .filter(|parameter| *parameter != ANY_VERSION)
        .collect();
    let path = format!("{}?{}", request.uri().path(), kept.join("&"));
    let mut parts = request.uri().clone().into_parts();
    if let Ok(path) = path.parse::<PathAndQuery>() {
        parts.path_and_query = Some(path);
        if let Ok(uri) = parts.try_into() {
            *request.uri_mut() = uri;
        }
    }
    request
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::streamed_list(
        "/api/v1/pods?watch=true&resourceVersion=0&sendInitialEvents=true",
        "/api/v1/pods?watch=true&sendInitialEvents=true"
    )]
    #[case::watch(
        "/api/v1/pods?watch=true&resourceVersion=0",
        "/api/v1/pods?watch=true&resourceVersion=0"
    )]
    #[case::list("/api/v1/pods", "/api/v1/pods")]
    fn streamed_list_has_no_version(#[case] sent: &str, #[case] expected: &str) {
        let request = Request::builder().uri(sent).body(()).unwrap();
        assert_eq!(without_version(request).uri(), expected);
    }
}
