//! `resources`: prints the managed objects of a resource.

use std::io::Read;

use alustan_api::run::{Inventory, ManagedObject, key};
use alustan_api::{ObjectKey, json_size, names};
use alustan_state::error_text::place_in_json;
use alustan_state::secrets::StoreError;
use clap::{Args, ValueEnum};
use flate2::read::GzDecoder;

use crate::cluster::Cluster;
use crate::error::Error;
use crate::print;
use crate::record::RecordHandle;

/// Maximum size of a list, in bytes. Module code can write any bytes into the run report.
const MAX_BYTES: u64 = 1 << 20;

/// Print the managed objects of the module, as of the last run that read the state.
#[derive(Debug, Args)]
pub(crate) struct Resources {
    /// Name of the resource.
    name: String,
    /// Output format. Default: a table of addresses, types and marks.
    #[arg(short, long)]
    output: Option<Form>,
}

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// Table that also has providers and ids.
    Wide,
    /// Addresses, one per line.
    Name,
    /// JSON object with number of the run, count and list.
    Json,
    /// The same as YAML.
    Yaml,
}

impl Resources {
    pub(crate) async fn run(&self, cluster: &Cluster) -> Result<(), Error> {
        let tf = cluster.resource(&self.name).await?;
        let record = RecordHandle::of(cluster, &tf);
        let name = names::report(&self.name);
        let secret = match record.secrets.read(&name).await {
            Err(StoreError::Missing(_)) => return Err(missing(&record.key)),
            Err(source) => {
                let what = format!(
                    "read Secret {} with the list of objects",
                    cluster.key(&name)
                );
                return Err(Error::Record { what, source });
            }
            Ok(secret) => secret,
        };
        let packed = secret.data.get(key::INVENTORY);
        let inventory = unpacked(packed.ok_or_else(|| missing(&record.key))?, &record.key)?;
        print::bytes(formatted(&inventory, self.output).as_bytes())?;
        if inventory.truncated {
            print::note(&format!(
                "{} of {} objects, as of run {}: the list is truncated. To list all objects of a \
                 managed state: kubectl alustan state pull {} -n {}",
                inventory.objects.len(),
                inventory.count,
                inventory.run,
                self.name,
                cluster.namespace
            ));
        }
        Ok(())
    }
}

fn missing(key: &ObjectKey) -> Error {
    let ObjectKey { name, namespace } = key;
    Error::Refused(format!(
        "no run has listed the objects of {key} yet. The next run lists them; to start one: \
         kubectl alustan reconcile {name} -n {namespace}"
    ))
}

/// Decompresses and parses a list from the run report.
fn unpacked(packed: &[u8], key: &ObjectKey) -> Result<Inventory, Error> {
    let unreadable = |why: String| {
        Error::Refused(format!(
            "cannot read the list of objects of {key}: {why}. Check that kubectl-alustan and the \
             operator have the same version"
        ))
    };
    let mut json = Vec::new();
    GzDecoder::new(packed)
        .take(MAX_BYTES + 1)
        .read_to_end(&mut json)
        .map_err(|error| unreadable(error.to_string()))?;
    if json.len() as u64 > MAX_BYTES || !json_size::is_small(&json) {
        return Err(unreadable("it is too large".to_owned()));
    }
    serde_json::from_slice(&json).map_err(|error| unreadable(place_in_json(&error)))
}

fn formatted(inventory: &Inventory, form: Option<Form>) -> String {
    let objects = inventory.objects.iter();
    match form {
        None => {
            let header = ["ADDRESS", "TYPE", "MARKS"].map(str::to_owned);
            let rows =
                objects.map(|object| [object.address.clone(), object.kind.clone(), marks(object)]);
            print::table(&std::iter::once(header).chain(rows).collect::<Vec<_>>())
        }
        Some(Form::Wide) => {
            let header = ["ADDRESS", "TYPE", "PROVIDER", "ID", "MARKS"].map(str::to_owned);
            let rows = objects.map(|object| {
                [
                    object.address.clone(),
                    object.kind.clone(),
                    object.provider.clone(),
                    object.id.clone().unwrap_or_default(),
                    marks(object),
                ]
            });
            print::table(&std::iter::once(header).chain(rows).collect::<Vec<_>>())
        }
        Some(Form::Name) => {
            // A deposed object has the address of the object that replaces it.
            let current = objects.filter(|object| object.deposed.is_none());
            current
                .flat_map(|object| [object.address.as_str(), "\n"])
                .collect()
        }
        // Serialization of an inventory cannot fail.
        Some(Form::Json) => serde_json::to_string_pretty(inventory).unwrap_or_default() + "\n",
        Some(Form::Yaml) => serde_saphyr::to_string(inventory).unwrap_or_default(),
    }
}

/// Returns why the next apply replaces or destroys the object; empty otherwise.
fn marks(object: &ManagedObject) -> String {
    let tainted = object.tainted.then(|| "tainted".to_owned());
    let deposed = object.deposed.as_ref().map(|key| format!("deposed {key}"));
    let marks: Vec<_> = tainted.into_iter().chain(deposed).collect();
    marks.join(", ")
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn listed() -> Value {
        json!({"run": 7, "count": 3, "truncated": false, "objects": [
            {"address": "a.b[\"ü\"]", "type": "a", "provider": "registry.test/x/a", "id": "i-1"},
            {"address": "a.b[\"ü\"]", "type": "a", "provider": "registry.test/x/a", "deposed": "0a1b"},
            {"address": "c.d", "type": "c", "provider": "p", "tainted": true},
        ]})
    }

    fn packed(json: &[u8]) -> Vec<u8> {
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(json).unwrap();
        packed.finish().unwrap()
    }

    fn unpack(packed: &[u8]) -> Result<Inventory, String> {
        unpacked(packed, &ObjectKey::new("team", "web")).map_err(|error| error.to_string())
    }

    #[rstest]
    #[case::table(
        None,
        "ADDRESS    TYPE   MARKS\na.b[\"ü\"]   a\na.b[\"ü\"]   a      deposed 0a1b\nc.d        c      tainted\n"
    )]
    #[case::wide(
        Some(Form::Wide),
        "ADDRESS    TYPE   PROVIDER            ID    MARKS\n\
         a.b[\"ü\"]   a      registry.test/x/a   i-1\n\
         a.b[\"ü\"]   a      registry.test/x/a         deposed 0a1b\n\
         c.d        c      p                         tainted\n"
    )]
    #[case::name(Some(Form::Name), "a.b[\"ü\"]\nc.d\n")]
    fn objects_are_printed_in_each_format(#[case] form: Option<Form>, #[case] wanted: &str) {
        let inventory = unpack(&packed(listed().to_string().as_bytes())).unwrap();
        assert_eq!(formatted(&inventory, form), wanted);
    }

    #[test]
    fn json_and_yaml_have_all_fields() {
        let inventory = unpack(&packed(listed().to_string().as_bytes())).unwrap();
        let json: Value = serde_json::from_str(&formatted(&inventory, Some(Form::Json))).unwrap();
        let yaml: Value = serde_saphyr::from_str(&formatted(&inventory, Some(Form::Yaml))).unwrap();
        assert_eq!((&json, &yaml), (&listed(), &listed()));
    }

    #[rstest]
    #[case::no_gzip(b"{}".to_vec(), "cannot read the list of objects of team/web")]
    #[case::no_json(
        packed(b"no json"),
        "kubectl-alustan and the operator have the same version"
    )]
    #[case::large(packed(&vec![b' '; 64 << 20]), "it is too large")]
    #[case::many_values(packed("[1".repeat(20_000).as_bytes()), "it is too large")]
    fn forged_list_is_refused(#[case] packed: Vec<u8>, #[case] says: &str) {
        let message = unpack(&packed).unwrap_err();
        assert!(message.contains(says), "{message}");
    }
}
