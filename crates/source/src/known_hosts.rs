//! Host keys that ship with the operator.

/// Host keys of github.com, gitlab.com and bitbucket.org (Ed25519, ECDSA, RSA) in the format of `known_hosts`.
///
/// Used if the Secret with the ssh private key has no data entry `known_hosts`. Published by the hosts at
/// - <https://docs.github.com/en/authentication/keeping-your-account-and-data-secure/githubs-ssh-key-fingerprints>
/// - <https://docs.gitlab.com/user/gitlab_com/#ssh-host-keys-fingerprints>
/// - <https://support.atlassian.com/bitbucket-cloud/docs/configure-ssh-and-two-step-verification/>
///
/// A test compares the keys with the fingerprints on these pages.
pub const BUILT_IN_KNOWN_HOSTS: &str = "\
github.com ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl\n\
github.com ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBEmKSENjQEezOmxkZMy7opKgwFB9nkt5YRrYMjNuG5N87uRgg6CLrbo5wAdT/y6v0mKV0U2w0WZ2YB/++Tpockg=\n\
github.com ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABgQCj7ndNxQowgcQnjshcLrqPEiiphnt+VTTvDP6mHBL9j1aNUkY4Ue1gvwnGLVlOhGeYrnZaMgRK6+PKCUXaDbC7qtbW8gIkhL7aGCsOr/C56SJMy/BCZfxd1nWzAOxSDPgVsmerOBYfNqltV9/hWCqBywINIR+5dIg6JTJ72pcEpEjcYgXkE2YEFXV1JHnsKgbLWNlhScqb2UmyRkQyytRLtL+38TGxkxCflmO+5Z8CSSNY7GidjMIZ7Q4zMjA2n1nGrlTDkzwDCsw+wqFPGQA179cnfGWOWRVruj16z6XyvxvjJwbz0wQZ75XK5tKSb7FNyeIEs4TT4jk+S4dhPeAUC5y+bDYirYgM4GC7uEnztnZyaVWQ7B381AK4Qdrwt51ZqExKbQpTUNn+EjqoTwvqNj4kqx5QUCI0ThS/YkOxJCXmPUWZbhjpCg56i+2aB6CmK2JGhn57K5mj0MNdBXA4/WnwH6XoPWJzK5Nyu2zB3nAZp+S5hpQs+p1vN1/wsjk=\n\
gitlab.com ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAfuCHKVTjquxvt6CM6tdG4SLp1Btn/nOeHHE5UOzRdf\n\
gitlab.com ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBFSMqzJeV9rUzU4kWitGjeR4PWSa29SPqJ1fVkhtj3Hw9xjLVXVYrU9QlYWrOLXBpQ6KWjbjTDTdDkoohFzgbEY=\n\
gitlab.com ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQCsj2bNKTBSpIYDEGk9KxsGh3mySTRgMtXL583qmBpzeQ+jqCMRgBqB98u3z++J1sKlXHWfM9dyhSevkMwSbhoR8XIq/U0tCNyokEi/ueaBMCvbcTHhO7FcwzY92WK4Yt0aGROY5qX2UKSeOvuP4D6TPqKF1onrSzH9bx9XUf2lEdWT/ia1NEKjunUqu1xOB/StKDHMoX4/OKyIzuS0q/T1zOATthvasJFoPrAjkohTyaDUz2LN5JoH839hViyEG82yB+MjcFV5MU3N1l1QL3cVUCh93xSaua1N85qivl+siMkPGbO5xR/En4iEY6K2XPASUEMaieWVNTRCtJ4S8H+9\n\
bitbucket.org ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIazEu89wgQZ4bqs3d63QSMzYVa0MuJ2e2gKTKqu+UUO\n\
bitbucket.org ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBPIQmuzMBuKdWeF4+a2sjSSpBK0iqitSQ+5BM9KhpexuGt20JpTVM7u5BDZngncgrqDMbWdxMWWOGtZ9UgbqgZE=\n\
bitbucket.org ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABgQDQeJzhupRu0u0cdegZIa8e86EG2qOCsIsD1Xw0xSeiPDlCr7kq97NLmMbpKTX6Esc30NuoqEEHCuc7yWtwp8dI76EEEB1VqY9QJq6vk+aySyboD5QF61I/1WeTwu+deCbgKMGbUijeXhtfbxSxm6JwGrXrhBdofTsbKRUsrN1WoNgUa8uqN1Vx6WAJw1JHPhglEGGHea6QICwJOAr/6mrui/oB7pkaWKHj3z7d1IC4KWLtY47elvjbaTlkN04Kc/5LFEirorGYVbt15kAUlqGM65pk6ZBxtaO3+30LVlORZkxOh+LKL/BvbZ/iRNhItLqNyieoQj/uh/7Iv4uyH/cV/0b4WDSd3DptigWq84lJubb9t/DnZlrJazxyDCulTmKdOR7vs9gMTo+uoIrPSb8ScTtvw65+odKAlBj59dhnVp9zd7QUojOpXlL62Aw56U4oO+FALuevvMjiWeavKhJqlR7i5n9srYcrNV7ttmDw7kf/97P5zauIhxcjX+xHv4M=\n";

/// Returns the host keys for ssh: `given`, from the Secret with the ssh key, or the built-in host keys if `given` is empty. Line endings are LF,
/// with a final newline.
pub(crate) fn effective(given: Option<&str>) -> String {
    given
        .map(normalise)
        .filter(|text| !text.trim().is_empty())
        .unwrap_or_else(|| BUILT_IN_KNOWN_HOSTS.to_owned())
}

fn normalise(text: &str) -> String {
    let mut lines: String = text.replace("\r\n", "\n").replace('\r', "\n");
    if !lines.ends_with('\n') {
        lines.push('\n');
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::prelude::*;
    use sha2::{Digest, Sha256};

    /// Published SHA-256 fingerprints of the hosts, from the pages in the documentation of [`BUILT_IN_KNOWN_HOSTS`].
    const PUBLISHED: [(&str, &str, &str); 9] = [
        (
            "github.com",
            "ssh-ed25519",
            "+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU",
        ),
        (
            "github.com",
            "ecdsa-sha2-nistp256",
            "p2QAMXNIC1TJYWeIOttrVc98/R1BUFWu3/LiyKgUfQM",
        ),
        (
            "github.com",
            "ssh-rsa",
            "uNiVztksCsDhcc0u9e8BujQXVUpKZIDTMczCvj3tD2s",
        ),
        (
            "gitlab.com",
            "ssh-ed25519",
            "eUXGGm1YGsMAS7vkcx6JOJdOGHPem5gQp4taiCfCLB8",
        ),
        (
            "gitlab.com",
            "ecdsa-sha2-nistp256",
            "HbW3g8zUjNSksFbqTiUWPWg2Bq1x8xdGUrliXFzSnUw",
        ),
        (
            "gitlab.com",
            "ssh-rsa",
            "ROQFvPThGrW4RuWLoL9tq9I9zJ42fK4XywyRtbOz/EQ",
        ),
        (
            "bitbucket.org",
            "ssh-ed25519",
            "ybgmFkzwOSotHTHLJgHO0QN8L0xErw6vd0VhFA9m3SM",
        ),
        (
            "bitbucket.org",
            "ecdsa-sha2-nistp256",
            "FC73VB6C4OQLSCrjEayhMp9UMxS97caD/Yyi2bhW/J0",
        ),
        (
            "bitbucket.org",
            "ssh-rsa",
            "46OSHA1Rmj8E8ERTC6xkNcmGOw9oFxYr0WF6zWW8l1E",
        ),
    ];

    #[test]
    fn built_in_keys_have_the_published_fingerprints() {
        let host_keys: Vec<(String, String, String)> = BUILT_IN_KNOWN_HOSTS
            .lines()
            .map(|line| {
                let mut words = line.split(' ');
                let host = words.next().unwrap();
                let kind = words.next().unwrap();
                let key = words.next().unwrap();
                let hash = Sha256::digest(BASE64_STANDARD.decode(key).unwrap());
                (
                    host.into(),
                    kind.into(),
                    BASE64_STANDARD_NO_PAD.encode(hash),
                )
            })
            .collect();
        let published: Vec<(String, String, String)> = PUBLISHED
            .iter()
            .map(|(a, b, c)| ((*a).into(), (*b).into(), (*c).into()))
            .collect();
        assert_eq!(host_keys, published);
    }

    #[test]
    fn lines_of_the_secret_replace_the_built_in_ones() {
        assert_eq!(
            effective(Some("a ssh-rsa x\r\nb ssh-rsa y")),
            "a ssh-rsa x\nb ssh-rsa y\n"
        );
        assert_eq!(effective(Some(" \n")), BUILT_IN_KNOWN_HOSTS);
        assert_eq!(effective(None), BUILT_IN_KNOWN_HOSTS);
    }
}
