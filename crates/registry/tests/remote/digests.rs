//! Digest requests to a real registry and to an unreachable registry.

use std::time::{Duration, Instant};

use alustan_registry::{Access, Digest, Options};

use crate::support::{
    DockerRegistry, FakeRegistry, Fault, PASSWORD, Setting, USER, assert_failure, basic, client,
    file, free_port, name, plain, request_digest, tag,
};

#[tokio::test]
async fn missing_image_is_not_an_error() {
    let server = DockerRegistry::start(Setting::default());
    assert_eq!(
        request_digest(&server.host(), &plain(None)).await.unwrap(),
        None
    );
    let hosts = Options {
        insecure_hosts: vec![server.host()],
        ..Options::default()
    };
    let result = client(hosts)
        .digest_of(&tag(&server.host(), "x"), &Access::anonymous())
        .await;
    assert_eq!(
        result.unwrap(),
        None,
        "the operator's own list of plain registries counts too"
    );
}

#[tokio::test]
async fn wrong_or_missing_credentials_are_unauthorized() {
    let server = DockerRegistry::start(Setting {
        htpasswd: true,
        ..Setting::default()
    });
    let host = server.host();
    assert_eq!(
        request_digest(&host, &plain(basic(USER, PASSWORD)))
            .await
            .unwrap(),
        None
    );
    for credential in [
        Some(basic(USER, "wrong")),
        Some(basic("you", PASSWORD)),
        None,
    ] {
        let error = request_digest(&host, &plain(credential)).await.unwrap_err();
        assert_failure(
            &error,
            "RegistryUnauthorized",
            false,
            &["containerRegistry.secretRef", &host],
        );
    }
    let bytes = &b"x"[..];
    let push = client(Options::default());
    let error = push
        .push_context(
            &name(&host),
            &Digest::of(bytes),
            &file(bytes),
            &plain(basic(USER, "wrong")),
        )
        .await;
    assert_failure(
        &error.unwrap_err(),
        "RegistryUnauthorized",
        false,
        &["push the context to"],
    );
}

#[tokio::test]
async fn authentication_is_not_shared_between_credentials() {
    let server = DockerRegistry::start(Setting {
        htpasswd: true,
        ..Setting::default()
    });
    let (client, image) = (client(Options::default()), tag(&server.host(), "x"));
    client
        .digest_of(&image, &plain(basic(USER, PASSWORD)))
        .await
        .unwrap();
    for credential in [None, Some(basic(USER, "wrong"))] {
        let error = client
            .digest_of(&image, &plain(credential))
            .await
            .unwrap_err();
        assert_failure(&error, "RegistryUnauthorized", false, &[]);
    }
    client
        .digest_of(&image, &plain(basic(USER, PASSWORD)))
        .await
        .unwrap();
}

#[tokio::test]
async fn unreachable_registry_is_a_transient_failure() {
    let closed = format!("127.0.0.1:{}", free_port());
    for access in [plain(None), Access::anonymous()] {
        assert_failure(
            &request_digest(&closed, &access).await.unwrap_err(),
            "RegistryUnreachable",
            true,
            &[&closed],
        );
    }
    let error = request_digest("no-such-host.invalid", &Access::anonymous())
        .await
        .unwrap_err();
    assert_failure(
        &error,
        "RegistryUnreachable",
        true,
        &["no-such-host.invalid"],
    );
}

#[tokio::test]
async fn untrusted_certificate_and_plain_http_are_tls_errors() {
    let server = DockerRegistry::start(Setting {
        tls: true,
        ..Setting::default()
    });
    let error = request_digest(&server.host(), &Access::anonymous())
        .await
        .unwrap_err();
    assert_failure(&error, "RegistryTls", false, &["authority"]);
    let plain_server = DockerRegistry::start(Setting::default());
    let error = request_digest(&plain_server.host(), &Access::anonymous())
        .await
        .unwrap_err();
    assert_failure(
        &error,
        "RegistryTls",
        false,
        &["containerRegistry.insecure"],
    );
    let error = request_digest(&server.host(), &plain(None))
        .await
        .unwrap_err();
    assert_failure(&error, "RegistryError", false, &["400"]);
}

#[tokio::test]
async fn silent_registry_times_out() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let host = silent.local_addr().unwrap().to_string();
    let client = client(Options {
        timeout: Duration::from_millis(300),
        ..Options::default()
    });
    let started = Instant::now();
    let error = client
        .digest_of(&tag(&host, "x"), &plain(None))
        .await
        .unwrap_err();
    assert_failure(&error, "RegistryUnreachable", true, &["no response within"]);
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn no_more_than_64_kib_of_an_error_is_read() {
    let server = FakeRegistry::start("", |seen, _| match seen.method.as_str() {
        "HEAD" => Some(Fault::Status(405)),
        _ if seen.path == "/v2/" => None,
        _ => Some(Fault::Stuck(503, (64 << 10) + 1)),
    })
    .await;
    let client = client(Options {
        timeout: Duration::from_secs(10),
        ..Options::default()
    });
    let error = client
        .digest_of(&tag(&server.host, "x"), &plain(None))
        .await
        .unwrap_err();
    assert_failure(&error, "RegistryUnreachable", true, &["status 503"]);
}
