use std::collections::BTreeMap;

use alustan_api::ModuleOutput;
use rstest::rstest;

use super::*;
use crate::{ContextSpec, pack_files};

fn inline(files: &[(&str, &str)]) -> Result<SourceFiles, Error> {
    inline_files(&InlineModule {
        files: files
            .iter()
            .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
            .collect(),
    })
}

#[rstest]
#[case("main.tf", true)]
#[case("main.tf.json", true)]
#[case("a-b_1.tfvars", true)]
#[case(".terraform.lock.hcl", true)]
#[case("user-data.sh", true)]
#[case("a/main.tf", false)]
#[case("../main.tf", false)]
#[case("..", false)]
#[case("", false)]
#[case(".hidden.tf", false)]
#[case("-x.tf", false)]
#[case("main", false)]
#[case("x.exe", false)]
#[case("terraform.tfstate.json", false)]
#[case("main.tf\n", false)]
#[case("ü.tf", false)]
fn inline_file_names_have_no_folder_and_an_allowed_suffix(#[case] name: &str, #[case] good: bool) {
    let files = inline(&[(name, "")]);
    assert_eq!(files.is_ok(), good, "{files:?}");
}

#[test]
fn inline_files_beyond_their_limits_are_refused() {
    let half = "x".repeat(MAX_INLINE_BYTES / 2);
    assert!(inline(&[("a.tf", &half), ("b.tf", &half)]).is_ok());
    let error = inline(&[("a.tf", &half), ("b.tf", &half), ("c.tf", "x")]).unwrap_err();
    assert_eq!(error.reason().as_str(), "InvalidSource");
    let of = |count: usize| {
        let files: BTreeMap<_, _> = (0..count)
            .map(|number| (format!("f{number}.tf"), String::new()))
            .collect();
        inline_files(&InlineModule { files })
    };
    assert!(of(MAX_INLINE_FILES).is_ok());
    assert!(of(MAX_INLINE_FILES + 1).is_err());
    assert!(of(0).is_err());
}

fn module(source: &str, version: Option<&str>) -> RemoteModule {
    RemoteModule {
        source: source.to_owned(),
        version: version.map(str::to_owned),
        outputs: Vec::new(),
    }
}

#[test]
fn root_module_passes_variables_and_outputs() {
    let mut vpc = module("terraform-aws-modules/vpc/aws", Some("~> 5.8"));
    let output = |name: &str, sensitive| ModuleOutput {
        name: name.to_owned(),
        sensitive,
    };
    vpc.outputs = vec![output("vpc_id", false), output("token", true)];
    let names = ["cidr", "source", "a.b", "1x", "count"].map(str::to_owned);
    let files = root_module_files(&vpc, &names.into()).unwrap();
    let text = String::from_utf8(files[ROOT_MODULE].content.to_vec()).unwrap();
    let root: Value = serde_json::from_str(&text).unwrap();
    let expected = json!({
        "module": {"main": {
            "source": "terraform-aws-modules/vpc/aws", "version": "~> 5.8", "cidr": "${var.cidr}",
        }},
        "variable": {"cidr": {}},
        "output": {
            "vpc_id": {"value": "${module.main.vpc_id}", "sensitive": false},
            "token": {"value": "${module.main.token}", "sensitive": true},
        },
    });
    assert_eq!(root, expected);
    let context = pack_files(&files, &ContextSpec::default(), &std::env::temp_dir()).unwrap();
    assert_eq!((context.files, context.module_backend), (1, None));
}

#[rstest]
#[case("terraform-aws-modules/vpc/aws", true, true)]
#[case("terraform-aws-modules/vpc/aws//modules/endpoints", true, true)]
#[case("registry.example.com:8443/team/net/aws", true, true)]
#[case("app.terraform.io/team/net/aws", true, true)]
#[case("git::https://git.test/team/net//a?ref=v1", false, true)]
#[case("git::ssh://git@git.test/team/net?ref=v1", false, true)]
#[case("github.com/team/net", false, true)]
#[case("git@github.com:team/net.git", false, true)]
#[case("https://git.test/net.zip", false, true)]
#[case("oci://registry.test/net?tag=1", false, true)]
#[case("./net", false, false)]
#[case("../net", false, false)]
#[case("/net", false, false)]
#[case("git::/net", false, false)]
#[case("file:///net", false, false)]
#[case("git::file:///net", false, false)]
#[case("a${path.root}", false, false)]
#[case("a\"b", false, false)]
#[case("a b", false, false)]
#[case("", false, false)]
fn module_source_is_remote(#[case] source: &str, #[case] versioned: bool, #[case] good: bool) {
    let with = root_module_files(&module(source, Some("1.2.3")), &BTreeSet::new());
    let without = root_module_files(&module(source, None), &BTreeSet::new());
    assert_eq!(with.is_ok(), good && versioned, "{with:?}");
    assert_eq!(without.is_ok(), good && !versioned, "{without:?}");
}

#[test]
fn invalid_versions_and_outputs_are_refused() {
    let source = "terraform-aws-modules/vpc/aws";
    for bad in ["", "${var.x}", "1.0\"", &"1".repeat(200)] {
        assert!(root_module_files(&module(source, Some(bad)), &BTreeSet::new()).is_err());
    }
    let mut vpc = module(source, Some("1.0.0"));
    for bad in ["", "a.b", "a}", "1a"] {
        vpc.outputs = vec![ModuleOutput {
            name: bad.to_owned(),
            sensitive: false,
        }];
        assert!(root_module_files(&vpc, &BTreeSet::new()).is_err(), "{bad}");
    }
}
