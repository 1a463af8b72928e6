//! Creates the S3 bucket and the DynamoDB lock table of a state (`spec.backend.bootstrap`).
//!
//! Runs as a separate process with the environment variables of the engine, so that credentials, proxies and certificates are the same.
//! Never changes an existing bucket or table.

use std::time::Duration;

use alustan_api::run::Bootstrap;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType, TableStatus,
};
use aws_sdk_s3::config::RuntimeComponents;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_s3::types::{
    BucketLocationConstraint, BucketVersioningStatus, CreateBucketConfiguration,
    PublicAccessBlockConfiguration, ServerSideEncryption, ServerSideEncryptionByDefault,
    ServerSideEncryptionConfiguration, ServerSideEncryptionRule, VersioningConfiguration,
};
use aws_smithy_http_client::proxy::ProxyConfig;
use aws_smithy_http_client::tls::Provider;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_http_client::{Builder, ConnectorBuilder};

use crate::failure::chain;

/// Name of the partition key of the lock table. The engine requires this name.
const LOCK: &str = "LockID";
/// Interval between status checks of a new lock table. [`MAX_POLLS`] is the maximum number of checks.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
const MAX_POLLS: u32 = 300;
/// Default region of S3, in which buckets are created without a location constraint.
const FIRST_REGION: &str = "us-east-1";

/// Error of a request: the failed action, for example `create bucket x`, and its cause.
#[derive(Debug, thiserror::Error)]
#[error("failed to {what}: {why}")]
pub struct Error {
    what: String,
    why: String,
}

fn failed<E>(action: &str) -> impl FnOnce(SdkError<E>) -> Error
where
    E: std::error::Error + 'static,
{
    let action = action.to_owned();
    |error| Error {
        what: action,
        why: chain(&error),
    }
}

/// Creates the bucket and the lock table in `location` if they do not exist. With `only_table`, creates only the lock table.
///
/// # Errors
/// Fails if a request to the cloud fails, or if the table is not active after 5 minutes.
pub async fn bootstrap(location: &Bootstrap, only_table: bool) -> Result<(), Error> {
    let config = config(location).await;
    if !only_table {
        bucket(&config, location).await?;
    }
    match &location.table {
        Some(name) => table(&config, name).await,
        None => Ok(()),
    }
}

async fn config(location: &Bootstrap) -> SdkConfig {
    let http = Builder::new().build_with_connector_fn(|settings, components| {
        let mut builder = ConnectorBuilder::default()
            .proxy_config(ProxyConfig::from_env())
            .tls_provider(Provider::Rustls(CryptoMode::Ring));
        if let Some(settings) = settings {
            builder = builder.connector_settings(settings.clone());
        }
        builder.set_sleep_impl(components.and_then(RuntimeComponents::sleep_impl));
        builder.build()
    });
    aws_config::defaults(BehaviorVersion::latest())
        .region(Region::new(location.region.clone()))
        .http_client(http)
        .load()
        .await
}

async fn bucket(config: &SdkConfig, location: &Bootstrap) -> Result<(), Error> {
    let mut own = aws_sdk_s3::config::Builder::from(config);
    if let Some(endpoint) = &location.endpoint {
        own = own.endpoint_url(endpoint).force_path_style(true);
    }
    let s3 = aws_sdk_s3::Client::from_conf(own.build());
    let name = &location.bucket;
    match s3.head_bucket().bucket(name).send().await {
        Ok(_) => return Ok(()),
        Err(error) if is_absent(&error) => {}
        Err(error) => return Err(failed(&format!("check bucket {name}"))(error)),
    }
    let region = location.region.as_str();
    let elsewhere = (region != FIRST_REGION).then(|| {
        CreateBucketConfiguration::builder()
            .location_constraint(BucketLocationConstraint::from(region))
            .build()
    });
    let make = s3.create_bucket().bucket(name);
    match make.set_create_bucket_configuration(elsewhere).send().await {
        Ok(_) => crate::log!("created bucket {name} in {region}"),
        // Another run created the bucket concurrently.
        Err(error) if error.code() == Some("BucketAlreadyOwnedByYou") => return Ok(()),
        Err(error) => return Err(failed(&format!("create bucket {name}"))(error)),
    }
    let Err(error) = secure(&s3, location).await else {
        return Ok(());
    };
    // Deletes the new bucket, so that the next attempt creates and configures the bucket: the runner never configures an existing bucket.
    match s3.delete_bucket().bucket(name).send().await {
        Ok(_) => Err(error),
        Err(stays) => Err(Error {
            why: format!(
                "{}. The new bucket could not be deleted ({}): delete it, or enable versioning, \
                 encryption and blocked public access for it",
                error.why,
                chain(&stays)
            ),
            ..error
        }),
    }
}

fn is_absent<E: ProvideErrorMetadata>(error: &SdkError<E>) -> bool {
    let status = error
        .raw_response()
        .map(|response| response.status().as_u16());
    status == Some(404)
}

/// Enables versioning, the public access block and encryption of the new bucket.
async fn secure(s3: &aws_sdk_s3::Client, location: &Bootstrap) -> Result<(), Error> {
    let name = &location.bucket;
    let versions = VersioningConfiguration::builder()
        .status(BucketVersioningStatus::Enabled)
        .build();
    s3.put_bucket_versioning()
        .bucket(name)
        .versioning_configuration(versions)
        .send()
        .await
        .map_err(failed(&format!("enable versioning of bucket {name}")))?;
    let closed = PublicAccessBlockConfiguration::builder()
        .block_public_acls(true)
        .block_public_policy(true)
        .ignore_public_acls(true)
        .restrict_public_buckets(true)
        .build();
    let done = s3
        .put_public_access_block()
        .bucket(name)
        .public_access_block_configuration(closed)
        .send()
        .await;
    let action = format!("block public access to bucket {name}");
    where_possible(&action, location, done.map(drop))?;
    let action = format!("enable encryption of bucket {name}");
    let by_default = ServerSideEncryptionByDefault::builder()
        .sse_algorithm(ServerSideEncryption::Aes256)
        .build()
        .map_err(|error| unbuilt(&action, &error))?;
    let rule = ServerSideEncryptionRule::builder()
        .apply_server_side_encryption_by_default(by_default)
        .build();
    let encryption = ServerSideEncryptionConfiguration::builder()
        .rules(rule)
        .build()
        .map_err(|error| unbuilt(&action, &error))?;
    let done = s3
        .put_bucket_encryption()
        .bucket(name)
        .server_side_encryption_configuration(encryption)
        .send()
        .await;
    where_possible(&action, location, done.map(drop))
}

/// Logs the error `NotImplemented` of an S3-compatible server (`spec.backend.endpoint`) and returns `Ok`. Returns every other error.
fn where_possible<E>(
    action: &str,
    location: &Bootstrap,
    done: Result<(), SdkError<E>>,
) -> Result<(), Error>
where
    E: std::error::Error + ProvideErrorMetadata + 'static,
{
    match done {
        Err(error) if location.endpoint.is_some() && error.code() == Some("NotImplemented") => {
            crate::log!("cannot {action}: the server does not support the operation");
            Ok(())
        }
        done => done.map_err(failed(action)),
    }
}

async fn table(config: &SdkConfig, name: &str) -> Result<(), Error> {
    let dynamo = aws_sdk_dynamodb::Client::new(config);
    if status(&dynamo, name).await?.is_none() {
        make_table(&dynamo, name).await?;
    }
    for _ in 0..MAX_POLLS {
        if status(&dynamo, name).await? == Some(TableStatus::Active) {
            return Ok(());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Err(Error {
        what: format!("create table {name}"),
        why: format!("the table is not active after {MAX_POLLS} seconds"),
    })
}

async fn status(
    dynamo: &aws_sdk_dynamodb::Client,
    name: &str,
) -> Result<Option<TableStatus>, Error> {
    match dynamo.describe_table().table_name(name).send().await {
        Ok(output) => Ok(output.table.and_then(|table| table.table_status)),
        Err(error) if error.code() == Some("ResourceNotFoundException") => Ok(None),
        Err(error) => Err(failed(&format!("check table {name}"))(error)),
    }
}

async fn make_table(dynamo: &aws_sdk_dynamodb::Client, name: &str) -> Result<(), Error> {
    let action = format!("create table {name}");
    let attribute = AttributeDefinition::builder()
        .attribute_name(LOCK)
        .attribute_type(ScalarAttributeType::S)
        .build()
        .map_err(|error| unbuilt(&action, &error))?;
    let key = KeySchemaElement::builder()
        .attribute_name(LOCK)
        .key_type(KeyType::Hash)
        .build()
        .map_err(|error| unbuilt(&action, &error))?;
    let made = dynamo
        .create_table()
        .table_name(name)
        .attribute_definitions(attribute)
        .key_schema(key)
        .billing_mode(BillingMode::PayPerRequest)
        .send()
        .await;
    match made {
        Ok(_) => {
            crate::log!("created table {name}");
            Ok(())
        }
        // Another run created the lock table concurrently.
        Err(error) if error.code() == Some("ResourceInUseException") => Ok(()),
        Err(error) => Err(failed(&action)(error)),
    }
}

fn unbuilt(action: &str, error: &dyn std::error::Error) -> Error {
    Error {
        what: action.to_owned(),
        why: error.to_string(),
    }
}
