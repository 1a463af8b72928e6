//! Certificate authority for one server and its administrator.

use std::fs;
use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};

/// Users with a client certificate. Requests with it are authenticated as the user, without impersonation.
pub(super) const USERS: [&str; 3] = ["alice", "bob", "carol"];

/// Writes `ca.crt`, certificate and key of the server (`server.…`), of a client with all rights (`admin.…`) and of [`USERS`], and the key pair
/// that signs ServiceAccount tokens (`accounts.…`).
pub(super) fn write(folder: &Path) {
    let key = KeyPair::generate().unwrap();
    let mut authority = params("alustan-test-ca", None);
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = authority.self_signed(&key).unwrap();
    fs::write(folder.join("ca.crt"), certificate.pem()).unwrap();
    let authority = Issuer::new(authority, key);

    let mut server = params("kube-apiserver", None);
    server.subject_alt_names = ["127.0.0.1", "::1", "localhost"]
        .map(|name| CertificateParams::new(vec![name.to_owned()]).unwrap())
        .into_iter()
        .flat_map(|params| params.subject_alt_names)
        .collect();
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    sign(folder, "server", &server, &authority);

    let clients = [("admin", Some("system:masters"))]
        .into_iter()
        .chain(USERS.map(|user| (user, None)));
    for (name, organisation) in clients {
        let mut client = params(name, organisation);
        client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        sign(folder, name, &client, &authority);
    }

    let accounts = KeyPair::generate().unwrap();
    fs::write(folder.join("accounts.key"), accounts.serialize_pem()).unwrap();
    fs::write(folder.join("accounts.pub"), accounts.public_key_pem()).unwrap();
}

fn params(name: &str, organisation: Option<&str>) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    if let Some(organisation) = organisation {
        let organisation = organisation.to_owned();
        params
            .distinguished_name
            .push(DnType::OrganizationName, organisation);
    }
    params
}

fn sign(folder: &Path, name: &str, params: &CertificateParams, authority: &Issuer<'_, KeyPair>) {
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, authority).unwrap();
    fs::write(folder.join(format!("{name}.crt")), certificate.pem()).unwrap();
    fs::write(folder.join(format!("{name}.key")), key.serialize_pem()).unwrap();
}
