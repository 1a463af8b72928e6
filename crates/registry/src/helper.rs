//! Credential helpers: programs that provide registry credentials, for example of cloud providers. See
//! <https://github.com/docker/docker-credential-helpers#development>.

use std::path::Path;
use std::process::Stdio;

use alustan_api::RegistryProvider;
use serde::Deserialize;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::{Child, Command},
};

use crate::{
    credential::Credential,
    error::{Error, short},
};

/// Maximum number of bytes that are read from stdout, and from stderr, of a credential helper.
const ANSWER: u64 = 1 << 20;
/// Environment variable with the path of the CA bundle that programs in Go trust. All helpers in the image of the operator are written in Go.
const CERTIFICATES: &str = "SSL_CERT_FILE";
/// Value of `Username` that marks the value of `Secret` as a refresh token.
const TOKEN: &str = "<token>";

/// Requests the credential for `registry` from the credential helper `program`. The helper trusts the certificates in the file
/// `certificates`. An error contains the output of the helper only if the helper failed, because the output of a successful helper contains
/// the credential.
pub(crate) async fn credential(
    program: &str,
    registry: &str,
    certificates: Option<&Path>,
) -> Result<Credential, Error> {
    let failed = |why: String| Error::Helper {
        program: program.to_owned(),
        registry: registry.to_owned(),
        why,
        missing: false,
    };
    let mut child = Command::new(program)
        .arg("get")
        // `program` does not identify the provider.
        .envs(
            RegistryProvider::identities()
                .flat_map(|identity| identity.helper_environment.iter().copied()),
        )
        .envs(certificates.map(|file| (CERTIFICATES, file)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| Error::Helper {
            program: program.to_owned(),
            registry: registry.to_owned(),
            why: error.to_string(),
            missing: error.kind() == std::io::ErrorKind::NotFound,
        })?;
    let (stdout, stderr) = converse(&mut child, registry)
        .await
        .map_err(|error| failed(error.to_string()))?;
    let ended = child
        .wait()
        .await
        .map_err(|error| failed(error.to_string()))?;
    if !ended.success() {
        // Helpers report errors on stdout or stderr.
        let why = [stdout, stderr].concat();
        return Err(failed(short(&String::from_utf8_lossy(&why))));
    }
    read(&stdout).ok_or_else(|| failed("the output has no `Username` and `Secret`".to_owned()))
}

async fn converse(child: &mut Child, registry: &str) -> std::io::Result<(Vec<u8>, Vec<u8>)> {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    if let Some(mut input) = child.stdin.take() {
        // An error is ignored: a helper that does not read its input may have exited before the write.
        let _ = input.write_all(registry.as_bytes()).await;
    }
    if let (Some(output), Some(errors)) = (child.stdout.take(), child.stderr.take()) {
        let (mut output, mut errors) = (output.take(ANSWER), errors.take(ANSWER));
        tokio::try_join!(
            output.read_to_end(&mut stdout),
            errors.read_to_end(&mut stderr)
        )?;
    }
    Ok((stdout, stderr))
}

/// JSON output of a credential helper.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HelperOutput {
    username: String,
    secret: String,
}

fn read(answer: &[u8]) -> Option<Credential> {
    let HelperOutput {
        username,
        secret: password,
    } = serde_json::from_slice(answer).ok()?;
    if password.is_empty() {
        return None;
    }
    Some(if username == TOKEN {
        Credential::Identity(password)
    } else {
        Credential::Basic { username, password }
    })
}
