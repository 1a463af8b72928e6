use std::sync::Arc;

use alustan_api::Reason;
use reqwest::dns::{Name, Resolve, Resolving};
use rstest::rstest;

use super::*;

#[rstest]
#[case(401, Reason::RegistryUnauthorized, false)]
#[case(403, Reason::RegistryForbidden, false)]
#[case(404, Reason::ImageNotFound, false)]
#[case(429, Reason::RegistryRateLimited, true)]
#[case(500, Reason::RegistryUnreachable, true)]
#[case(503, Reason::RegistryUnreachable, true)]
#[case(400, Reason::RegistryError, false)]
fn status_code_determines_reason(
    #[case] status: u16,
    #[case] reason: Reason,
    #[case] transient: bool,
) {
    let (failure, _) = read_answer(status, b"m");
    assert_eq!(
        (failure.reason(), failure.is_transient()),
        (reason, transient)
    );
}

#[rstest]
#[case("DENIED", Reason::RegistryForbidden)]
#[case("UNAUTHORIZED", Reason::RegistryUnauthorized)]
#[case("TOOMANYREQUESTS", Reason::RegistryRateLimited)]
#[case("NAME_UNKNOWN", Reason::ImageNotFound)]
#[case("SOMETHING", Reason::RegistryError)]
fn error_code_determines_reason(#[case] code: &str, #[case] reason: Reason) {
    let text = format!(r#"{{"errors":[{{"code":"{code}","message":"why"}}]}}"#);
    let (failure, detail) = read_answer(400, text.as_bytes());
    assert_eq!((failure.reason(), detail.as_str()), (reason, "why"));
}

#[rstest]
#[case(500, "UNKNOWN", Reason::RegistryUnreachable)]
#[case(429, "DENIED", Reason::RegistryRateLimited)]
#[case(405, "DENIED", Reason::RegistryUnsupported)]
#[case(401, "DENIED", Reason::RegistryUnauthorized)]
#[case(400, "DENIED", Reason::RegistryForbidden)]
#[case(400, "SOMETHING", Reason::RegistryError)]
#[case(404, "MANIFEST_BLOB_UNKNOWN", Reason::RegistryError)]
#[case(404, "MANIFEST_UNKNOWN", Reason::ImageNotFound)]
#[case(412, "", Reason::RegistryError)]
fn status_decides_before_the_error_code(
    #[case] status: u16,
    #[case] code: &str,
    #[case] reason: Reason,
) {
    let body = format!(r#"{{"errors":[{{"code":"{code}","message":"why"}}]}}"#);
    let (failure, detail) = read_answer(status, body.as_bytes());
    assert_eq!((failure.reason(), detail.as_str()), (reason, "why"));
    let (_, detail) = read_answer(status, b"<html>");
    assert_eq!(detail, format!("status {status} <html>"));
}

#[rstest]
#[case(404, "", true)]
#[case(404, "BLOB_UPLOAD_UNKNOWN", true)]
#[case(400, "BLOB_UPLOAD_UNKNOWN", true)]
#[case(400, "BLOB_UPLOAD_INVALID", true)]
#[case(400, "DIGEST_INVALID", true)]
#[case(416, "", true)]
#[case(400, "SIZE_INVALID", false)]
#[case(401, "BLOB_UPLOAD_UNKNOWN", false)]
#[case(403, "BLOB_UPLOAD_UNKNOWN", false)]
fn lost_upload_session_is_recognised(
    #[case] status: u16,
    #[case] code: &str,
    #[case] expected: bool,
) {
    let body = format!(r#"{{"errors":[{{"code":"{code}","message":"why"}}]}}"#);
    let (failure, _) = read_upload_answer(status, body.as_bytes());
    assert_eq!(failure == Failure::UploadLost, expected, "{failure:?}");
}

/// Returns the error of the resolver for a name without address.
struct NoAddress(&'static str);

impl Resolve for NoAddress {
    fn resolve(&self, _: Name) -> Resolving {
        let text = format!(
            "no records found for Query {{ name: Name(\"{}\"), query_type: AAAA, query_class: IN }}",
            self.0
        );
        Box::pin(async move { Err(text.into()) })
    }
}

#[rstest]
#[case::name("registry.example.tst.")]
#[case::name_with_search_domain("registry.example.tst.team.svc.cluster.local.")]
#[tokio::test]
async fn missing_host_name_is_reported_without_the_query(#[case] queried: &'static str) {
    // Not installed as the default of the process, which another test requires to be missing.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let client = reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .no_proxy()
        .dns_resolver(Arc::new(NoAddress(queried)))
        .build()
        .unwrap();
    let request = client.get("http://registry.example.tst:5000/v2/");
    let (failure, detail) = read_request(&request.send().await.unwrap_err());
    assert_eq!(failure, Failure::Unreachable);
    assert_eq!(
        detail,
        "the host name registry.example.tst does not exist; check the field that contains it, for example `containerRegistry.imageName`"
    );
}
