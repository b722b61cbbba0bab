//! Settings of certificate orders.

use super::{Issuing, source::SettingSource};
use crate::model::base::leader::LeaseTerms;

/// Production directory of Let's Encrypt.
pub(super) const DIRECTORY: &str = "https://acme-v02.api.letsencrypt.org/directory";

pub(super) fn issuing(source: &mut SettingSource<'_>) -> Issuing {
    let directory = acme_directory(source, "TAILYARD_ACME_DIRECTORY").or_else(|| acme_directory(source, "TS_DEBUG_ACME_DIRECTORY_URL"));
    let (secret, field) = (source.owned("TS_ACME_ACCOUNT_SECRET_NAME"), source.owned("TS_ACME_ACCOUNT_FIELD"));
    if secret.is_some() != field.is_some() {
        let (setting, other) = ("TS_ACME_ACCOUNT_SECRET_NAME", "TS_ACME_ACCOUNT_FIELD");
        let (setting, other) = if secret.is_some() { (setting, other) } else { (other, setting) };
        source.needs(setting, false, other);
    }
    Issuing {
        directory: directory.unwrap_or_else(|| DIRECTORY.to_owned()),
        ca: source.path("TAILYARD_ACME_CA"),
        account: secret.zip(field),
        away: source.optional_duration("TAILYARD_CERT_LEADER_TIMEOUT").unwrap_or(LeaseTerms::CERT_LEADER.lease_duration),
    }
}

pub(super) fn acme_directory(source: &mut SettingSource<'_>, variable: &str) -> Option<String> {
    let url = |text: &str| text.strip_prefix("https://").is_some_and(|rest| !rest.is_empty()).then(|| text.to_owned());
    source.parsed(variable, "a URL that begins with https://", url)
}
