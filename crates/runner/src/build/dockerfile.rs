//! Dockerfile in the git repository. The Dockerfile may extend the base image. It must refer to every other image by digest, so that the
//! same content always produces the same image (rule 1).

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use alustan_api::Reason;
use alustan_api::report::Failure;

use crate::failure::user;
use crate::file_system::module_directory;

/// References to the build argument that contains the base image by digest.
const BASE: [&str; 2] = ["$ALUSTAN_BASE", "${ALUSTAN_BASE}"];
/// Maximum size of a Dockerfile, in bytes.
const MAX_BYTES: u64 = 256 * 1024;

/// Reads the Dockerfile at `path` in the git repository, and checks it.
pub(super) fn read(repository: &Path, path: &str) -> Result<String, Failure> {
    let refuse = |why: String| {
        let field = "spec.containerRegistry.dockerfile";
        user(Reason::DockerfileRefused, format!("{field}: {path}: {why}"))
    };
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    // Refuses a path that leads out of the repository through a symbolic link.
    let root = repository.canonicalize().ok();
    let file = module_directory(repository, folder)
        .and_then(|folder| folder.canonicalize().ok())
        .filter(|folder| root.is_some_and(|root| folder.starts_with(root)))
        .map(|folder| folder.join(name));
    let size = file.as_ref().and_then(|file| {
        let metadata = fs::symlink_metadata(file).ok()?;
        metadata.is_file().then_some(metadata.len())
    });
    let (Some(file), Some(size)) = (file, size) else {
        return Err(refuse(
            "the file does not exist in the repository at this commit".to_owned(),
        ));
    };
    if size > MAX_BYTES {
        return Err(refuse(format!("the file exceeds {MAX_BYTES} bytes")));
    }
    let text = fs::read_to_string(file).map_err(|error| refuse(error.to_string()))?;
    check(&text).map_err(refuse)?;
    Ok(text)
}

/// Checks that every stage starts from the base image, an image by digest, `scratch` or an earlier stage. Also checks the sources of `COPY`
/// and `RUN --mount`, and refuses here-documents and `ONBUILD`.
fn check(text: &str) -> Result<(), String> {
    let mut stages = BTreeSet::new();
    let mut last = None;
    for line in instructions(text)? {
        let words: Vec<&str> = line.split_whitespace().collect();
        let operands = words.iter().skip(1).filter(|word| !word.starts_with("--"));
        let operands: Vec<&str> = operands.copied().collect();
        match (
            words
                .first()
                .map(|word| word.to_ascii_uppercase())
                .as_deref(),
            operands.as_slice(),
        ) {
            (Some("FROM"), [image, name @ ..]) => {
                if !is_fixed(image, &stages) {
                    return Err(format!(
                        "`FROM {image}`: the base image must be `${{ALUSTAN_BASE}}`, or have a \
                         digest: `name@sha256:…`"
                    ));
                }
                last = Some((*image).to_owned());
                if let [word, name] = name
                    && word.eq_ignore_ascii_case("as")
                {
                    stages.insert(name.to_ascii_lowercase());
                }
            }
            (Some("FROM"), []) => return Err("a `FROM` instruction has no image".to_owned()),
            // Refuses here-documents, because builders do not parse the lines of a here-document as instructions. Builders detect a
            // here-document even in `${X:-<}<END`.
            (Some(word @ ("ADD" | "COPY" | "RUN")), _) if line.matches('<').count() > 1 => {
                return Err(format!(
                    "`{word}` contains more than one `<`: here-documents are not supported"
                ));
            }
            (Some("COPY" | "RUN"), _) => check_sources(&words, &stages)?,
            (Some("ONBUILD"), _) => {
                return Err(
                    "`ONBUILD` is not supported; move the instruction to a base image".to_owned(),
                );
            }
            _ => {}
        }
    }
    last.map(drop)
        .ok_or_else(|| "the file has no `FROM` instruction".to_owned())
}

/// Checks that the images in `COPY --from=…` and `RUN --mount=from=…` are stages, or have a digest.
fn check_sources(words: &[&str], stages: &BTreeSet<String>) -> Result<(), String> {
    let flags = words
        .iter()
        .skip(1)
        .take_while(|word| word.starts_with("--"));
    let sources = flags.flat_map(|flag| match flag.strip_prefix("--from=") {
        Some(image) => vec![image],
        None => flag
            .split([',', '='])
            .zip(flag.split([',', '=']).skip(1))
            .filter_map(|(key, value)| (key == "from").then_some(value))
            .collect(),
    });
    let number = |image: &str| image.bytes().all(|byte| byte.is_ascii_digit());
    match sources
        .into_iter()
        .find(|image| !number(image) && !is_fixed(image, stages))
    {
        None => Ok(()),
        Some(image) => Err(format!(
            "`{image}`: the source of a copy must be a stage, or an image with a digest: \
             `name@sha256:…`"
        )),
    }
}

fn is_fixed(image: &str, stages: &BTreeSet<String>) -> bool {
    let digest = image.split_once("@sha256:").is_some_and(|(name, digits)| {
        !name.is_empty()
            && !name.contains('$')
            && digits.len() == 64
            && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
    });
    digest
        || BASE.contains(&image)
        || image == "scratch"
        || stages.contains(&image.to_ascii_lowercase())
}

/// Splits a Dockerfile into instructions as builders do: removes comments, and joins continued lines unchanged. A line continues if it
/// ends with a single backslash, followed only by spaces and tabs. Refuses lines that builders could parse differently
/// (<https://github.com/moby/buildkit/blob/master/frontend/dockerfile/parser/parser.go>).
fn instructions(text: &str) -> Result<Vec<String>, String> {
    let mut instructions = Vec::new();
    let mut open = String::new();
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for line in text.lines() {
        let trimmed = line.trim();
        if let Some(comment) = trimmed.strip_prefix('#') {
            let comment: String = comment.split_whitespace().collect();
            if comment.to_ascii_lowercase().starts_with("escape=") && comment != "escape=\\" {
                return Err("the escape character must be the backslash".to_owned());
            }
            continue;
        }
        if trimmed.is_empty() {
            continue;
        }
        if let Some(part) = line.trim_end().strip_suffix('\\') {
            if part.ends_with('\\') {
                return Err(
                    "a line ends with two backslashes, which builders may parse differently"
                        .to_owned(),
                );
            }
            if !line.trim_end_matches([' ', '\t']).ends_with('\\') {
                return Err(
                    "a line ends with a backslash, followed by white space other than spaces or tabs"
                        .to_owned(),
                );
            }
            open.push_str(part);
        } else {
            open.push_str(line);
            instructions.push(std::mem::take(&mut open));
        }
    }
    if open.is_empty() {
        Ok(instructions)
    } else {
        Err("the last line ends with a backslash".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    const PINNED: &str =
        "h/x@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[rstest]
    #[case::base_argument("ARG ALUSTAN_BASE\nFROM ${ALUSTAN_BASE}\nRUN apt-get install jq\n")]
    #[case::lower_case("arg ALUSTAN_BASE\nfrom $ALUSTAN_BASE AS runner")]
    #[case::by_digest(&format!("FROM {PINNED}"))]
    #[case::for_a_platform(&format!("FROM --platform=linux/amd64 {PINNED} AS a"))]
    #[case::earlier_stage(&format!("FROM {PINNED} AS Tools\nFROM ${{ALUSTAN_BASE}}\nCOPY --from=tools /x /x\nCOPY --from=0 /y /y"))]
    #[case::from_a_stage(&format!("FROM {PINNED} AS a\nFROM a"))]
    #[case::nothing("FROM scratch")]
    #[case::continued("FROM \\\n  # why\n  ${ALUSTAN_BASE}")]
    #[case::a_mount(&format!("FROM $ALUSTAN_BASE\nRUN --mount=type=bind,from={PINNED},target=/x true"))]
    fn valid_dockerfile_is_accepted(#[case] text: &str) {
        check(text).unwrap();
    }

    #[rstest]
    #[case::a_tag("FROM alpine:3.20", "FROM alpine:3.20")]
    #[case::no_tag("FROM alpine", "digest")]
    #[case::a_continued_tag("FROM \\\n alpine", "FROM alpine")]
    #[case::another_argument("ARG X=alpine\nFROM $X", "FROM $X")]
    #[case::an_argument_within(
        "ARG X\nFROM ${X}@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        "digest"
    )]
    #[case::split_keyword("FR\\\nOM alpine", "FROM alpine")]
    #[case::behind_spaces("  \\  \n  FROM alpine", "FROM alpine")]
    #[case::a_stage_that_comes_later("FROM b\nFROM scratch AS b", "FROM b")]
    #[case::a_copy("FROM scratch\nCOPY --from=alpine:3 /x /x", "alpine:3")]
    #[case::a_mount(
        "FROM scratch\nRUN --mount=type=bind,from=alpine,target=/x true",
        "alpine"
    )]
    #[case::none("RUN true", "no `FROM`")]
    #[case::empty("", "no `FROM`")]
    #[case::unfinished("FROM scratch \\", "backslash")]
    #[case::another_escape("# escape=`\nFROM scratch", "escape")]
    #[case::on_build("FROM scratch\nONBUILD RUN true", "ONBUILD")]
    #[case::from_without_image("FROM", "has no image")]
    #[case::a_short_digest("FROM x@sha256:00", "digest")]
    #[case::two_backslashes("LABEL a=b\\\\\nFROM alpine:3\nFROM scratch", "two backslashes")]
    #[case::two_and_spaces("LABEL a=b\\\\ \t\nFROM alpine:3\nFROM scratch", "two backslashes")]
    #[case::a_form_feed(
        "LABEL a=b\\\u{c}\nFROM alpine:3\nFROM scratch",
        "white space other than spaces or tabs"
    )]
    #[case::no_break_space(
        "LABEL a=b\\\u{a0}\nFROM alpine:3\nFROM scratch",
        "white space other than spaces or tabs"
    )]
    #[case::two_carriage_returns(
        "LABEL a=\\\r\r\nFROM scratch AS alpine\nFROM alpine",
        "white space other than spaces or tabs"
    )]
    #[case::a_byte_order_mark("\u{feff}FROM alpine:3\nFROM scratch", "FROM alpine:3")]
    #[case::a_here_document(
        "FROM scratch\nRUN <<END\nFROM scratch AS alpine\nEND\nFROM alpine",
        "here-documents"
    )]
    #[case::a_hidden_here_document(
        "FROM scratch\nCOPY ${X:-<}<END /x\nFROM scratch AS alpine\nEND\nFROM alpine",
        "here-documents"
    )]
    fn unpinned_or_unsupported_dockerfile_is_refused(#[case] text: &str, #[case] why: &str) {
        let error = check(text).unwrap_err();
        assert!(error.contains(why), "{error}");
    }

    #[test]
    fn dockerfile_outside_the_repository_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let repository = folder.path().join("repository");
        fs::create_dir_all(repository.join("docker")).unwrap();
        fs::write(repository.join("docker/Dockerfile"), "FROM scratch").unwrap();
        fs::write(folder.path().join("outside"), "FROM scratch").unwrap();
        std::os::unix::fs::symlink("../outside", repository.join("link")).unwrap();
        std::os::unix::fs::symlink("..", repository.join("above")).unwrap();
        assert_eq!(
            read(&repository, "docker/Dockerfile").unwrap(),
            "FROM scratch"
        );
        for path in [
            "link",
            "above/outside",
            "docker",
            "docker/none",
            "../outside",
            "none/Dockerfile",
        ] {
            let failure = read(&repository, path).unwrap_err();
            assert_eq!(failure.reason, "DockerfileRefused", "{path}");
            assert!(
                failure
                    .message
                    .contains("spec.containerRegistry.dockerfile"),
                "{path}"
            );
        }
    }

    #[test]
    fn dockerfile_larger_than_256_kib_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let read_bytes = |bytes: usize| {
            let start = "FROM scratch\n#";
            let text = format!("{start}{}", "x".repeat(bytes - start.len()));
            fs::write(folder.path().join("Dockerfile"), text).unwrap();
            read(folder.path(), "Dockerfile")
        };
        assert!(read_bytes(256 << 10).is_ok());
        let failure = read_bytes((256 << 10) + 1).unwrap_err();
        assert_eq!(failure.reason, "DockerfileRefused");
        let why = "the file exceeds 262144 bytes";
        assert!(failure.message.contains(why), "{failure:?}");
    }

    proptest! {
        #[test]
        fn base_image_by_tag_is_always_refused(
            before in "(#[a-z ]{0,8}\n|ARG [A-Z]{1,4}=[a-z]{0,4}\n|\n){0,4}",
            gap in "( |\t|\\\\\n){1,3}",
            image in "[a-z]{1,8}(:[a-z0-9.]{1,6})?",
        ) {
            prop_assume!(image != "scratch");
            let text = format!("{before}FROM{gap}{image}\nRUN true\n");
            // Without white space, `FROM` and the image are one word, so the line is no `FROM` instruction.
            prop_assume!(gap.contains([' ', '\t']));
            prop_assert!(check(&text).is_err(), "{text}");
        }

        #[test]
        fn arbitrary_dockerfile_causes_no_panic(text in "\\PC{0,60}") {
            let _ = check(&text);
        }
    }
}
