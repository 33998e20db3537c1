//! Writes the configurations. Each write replaces the version that was read, so a writer with an older version gets a
//! conflict.

use std::fmt::Debug;

use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::desired::{Desired, Target, mark, owner};
use super::live::Live;
use crate::client::owner_reference;
use crate::leader::FIELD_MANAGER;
use crate::release::Release;
use crate::webhook_config::switch::{self, SwitchState};

/// Why a configuration was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The configuration was written for a later epoch of the rotation's record, so this writer is outdated.
    #[error("the webhook configuration is for epoch {live}, and this write is for epoch {ours}: read the record again")]
    Behind {
        /// The epoch of the existing configuration.
        live: u64,
        /// The epoch of this write.
        ours: u64,
    },
    /// The configuration has changed since it was read.
    #[error("the webhook configuration has changed since it was read")]
    Changed,
    /// A configuration of this name belongs to another release.
    #[error("the webhook configuration belongs to release {0}: two releases cannot have the same name")]
    OtherRelease(String),
    /// The configuration has entries, which a claim would remove.
    #[error("the webhook configuration has entries, and is not emptied")]
    NotEmpty,
    /// The bundle has no CA, or content besides CAs. With an empty bundle, the API server would trust the system's CAs.
    #[error("the bundle has no certificate, or has other content: nothing is written")]
    NoCa,
    /// An administrator disabled the webhooks.
    #[error("an administrator disabled the webhook configurations: nothing is written")]
    WebhooksDisabled,
    /// The API server is unavailable or rejected the request.
    #[error(transparent)]
    Client(#[from] kube::Error),
}

/// Reads the observed state. If the `ConfigMap` has an unknown value, the webhooks are treated as disabled only if
/// `was_disabled`.
///
/// # Errors
/// The API server is unavailable or denies the request.
pub async fn observe(client: &Client, release: &Release, was_disabled: bool) -> Result<Live, kube::Error> {
    let name = release.configuration();
    let switch = Api::<ConfigMap>::namespaced(client.clone(), release.namespace()).get_opt(release.switch()).await?;
    let mut disabled = SwitchState { off: was_disabled };
    disabled.move_to(&switch::webhooks(switch.as_ref()));
    Ok(Live {
        mutating: Api::all(client.clone()).get_opt(name).await?,
        validating: Api::all(client.clone()).get_opt(name).await?,
        disabled: disabled.off,
    })
}

/// Writes the mutating configuration without entries, for this epoch, and deletes the validating one. From then on, no
/// webhook is called, and writes of leaders with an earlier epoch fail. Returns the new observed state.
///
/// # Errors
/// - `live` is outdated, or the mutating configuration has entries.
/// - The webhooks are disabled, or another release owns a configuration.
/// - The API server rejected a request. The mutating configuration may have been written nevertheless.
pub async fn claim(client: &Client, release: &Release, live: &Live, epoch: u64) -> Result<Live, WriteError> {
    check(release, live, epoch)?;
    let emptied = live.mutating.clone().unwrap_or_default();
    if emptied.webhooks.iter().flatten().next().is_some() {
        return Err(WriteError::NotEmpty);
    }
    let mut desired = MutatingWebhookConfiguration { webhooks: Some(Vec::new()), ..emptied };
    desired.metadata.name = Some(release.configuration().to_owned());
    mark(&mut desired.metadata, release, epoch, None);
    let mutating = put(client, release, live.mutating.as_ref(), desired).await?;
    if let Some(validating) = &live.validating {
        delete(client, validating).await?;
    }
    Ok(Live { mutating: Some(mutating), validating: None, disabled: false })
}

/// Writes both configurations in their desired state. Deletes the validating one if it would have no entries. Returns
/// the new observed state.
///
/// # Errors
/// - `live` is outdated, or the bundle of `target` is invalid.
/// - The webhooks are disabled, or another release owns a configuration.
/// - The API server rejected a request. The mutating configuration may have been written nevertheless.
pub async fn write(client: &Client, release: &Release, live: &Live, target: &Target) -> Result<Live, WriteError> {
    check(release, live, target.epoch)?;
    if !target.has_cas() {
        return Err(WriteError::NoCa);
    }
    let Desired { mutating, validating } = target.desired(release, Timestamp::now());
    let mutating = put(client, release, live.mutating.as_ref(), mutating).await?;
    let validating = match (&live.validating, validating) {
        (existing, Some(validating)) => Some(put(client, release, existing.as_ref(), validating).await?),
        (Some(existing), None) => {
            delete(client, existing).await?;
            None
        }
        (None, None) => None,
    };
    Ok(Live { mutating: Some(mutating), validating, disabled: false })
}

/// Deletes both configurations of this release, so that no webhook is called. Deletes nothing if one belongs to another
/// release. Stops after five attempts if the configurations keep changing. Returns whether a configuration was deleted.
///
/// # Errors
/// The API server rejected the request.
pub async fn remove(client: &Client, release: &Release) -> Result<bool, kube::Error> {
    // Retry a few times if a configuration changes between reading and deleting it.
    let mut removed = false;
    for _ in 0..5 {
        let live = observe(client, release, true).await?;
        if live.views().next().is_none() || live.other_owner(&owner(release)).is_some() {
            return Ok(removed);
        }
        let mutating = delete_if_exists(client, live.mutating.as_ref()).await;
        let validating = delete_if_exists(client, live.validating.as_ref()).await;
        for deleted in [mutating, validating] {
            match deleted {
                Ok(()) => removed = true,
                Err(WriteError::Client(error)) => return Err(error),
                Err(_) => {}
            }
        }
    }
    Ok(removed)
}

fn check(release: &Release, live: &Live, epoch: u64) -> Result<(), WriteError> {
    if live.disabled {
        return Err(WriteError::WebhooksDisabled);
    }
    if let Some(other) = live.other_owner(&owner(release)) {
        return Err(WriteError::OtherRelease(other));
    }
    match live.epoch() {
        Some(live) if live > epoch => Err(WriteError::Behind { live, ours: epoch }),
        _ => Ok(()),
    }
}

/// Creates `desired`, or replaces `live` with it. Labels and annotations of other clients are kept.
async fn put<K>(client: &Client, release: &Release, live: Option<&K>, mut desired: K) -> Result<K, WriteError>
where
    K: Resource<DynamicType = (), Scope = kube::core::ClusterResourceScope>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned,
{
    let api = Api::<K>::all(client.clone());
    let parameters = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    let owner = Box::pin(owner_reference::for_namespace(client, release)).await;
    if let Some(live) = live {
        let ours = std::mem::take(desired.meta_mut());
        *desired.meta_mut() = merged(live.meta(), ours);
    }
    if let Some(owner) = owner {
        owner_reference::set_owner(desired.meta_mut(), owner);
    }
    let written = if live.is_some() {
        let name = desired.meta().name.clone().unwrap_or_default();
        api.replace(&name, &parameters, &desired).await
    } else {
        desired.meta_mut().resource_version = None;
        api.create(&parameters, &desired).await
    };
    written.map_err(conflict)
}

/// Returns the existing metadata, with Pillion's labels and annotations added.
fn merged(live: &ObjectMeta, ours: ObjectMeta) -> ObjectMeta {
    let mut merged = ObjectMeta { managed_fields: None, ..live.clone() };
    merged.annotations.get_or_insert_default().extend(ours.annotations.unwrap_or_default());
    merged.labels.get_or_insert_default().extend(ours.labels.unwrap_or_default());
    merged
}

async fn delete_if_exists<K>(client: &Client, live: Option<&K>) -> Result<(), WriteError>
where
    K: Resource<DynamicType = (), Scope = kube::core::ClusterResourceScope> + Clone + Debug + DeserializeOwned,
{
    match live {
        Some(live) => delete(client, live).await,
        None => Ok(()),
    }
}

/// Deletes the object if it still has the version that was read. A missing object is not an error.
async fn delete<K>(client: &Client, live: &K) -> Result<(), WriteError>
where
    K: Resource<DynamicType = (), Scope = kube::core::ClusterResourceScope> + Clone + Debug + DeserializeOwned,
{
    let ObjectMeta { name, uid, resource_version, .. } = live.meta().clone();
    let parameters =
        DeleteParams { preconditions: Some(Preconditions { uid, resource_version }), ..DeleteParams::default() };
    match Api::<K>::all(client.clone()).delete(&name.unwrap_or_default(), &parameters).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(conflict(error)),
    }
}

/// Maps 404 and 409 to [`WriteError::Changed`]: the object was changed, deleted or created since it was read.
fn conflict(error: kube::Error) -> WriteError {
    match error {
        kube::Error::Api(status) if matches!(status.code, 404 | 409) => WriteError::Changed,
        error => WriteError::Client(error),
    }
}
