//! Login of a daemon without config file: preferences and key by LocalAPI, so that no secret is on a command line.
//!
//! Settings beyond preferences (OAuth client, identity token, unknown flag) use the `tailscale` command, which reads its secret from standard
//! input.

use super::settings::{Secret, TwoStep};
use crate::api::localapi::MaskedPrefs;
use crate::model::base::go_values;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoginPlan {
    /// By LocalAPI. The auth key may be `file:PATH`.
    Direct { prefs: Box<MaskedPrefs>, auth_key: Option<Secret> },
    /// By `tailscale up` with these arguments, the secret on its standard input.
    Command { args: Vec<String>, stdin: Option<Secret> },
}

/// File name of standard input.
const STDIN: &str = "file:/dev/stdin";

/// Login plan for these settings. `socket` is the LocalAPI's.
pub fn plan(settings: &TwoStep, socket: &str) -> LoginPlan {
    let oauth =
        settings.client_id.is_some() || settings.client_secret.is_some() || settings.id_token.is_some() || settings.audience.is_some();
    match prefs(settings) {
        Some(prefs) if !oauth => LoginPlan::Direct { prefs: Box::new(prefs), auth_key: settings.auth_key.clone() },
        _ => command(settings, socket),
    }
}

/// Preferences for the settings; `None` for an unknown extra argument.
pub fn prefs(settings: &TwoStep) -> Option<MaskedPrefs> {
    let mut prefs = MaskedPrefs {
        want_running: Some(true),
        corp_dns: Some(settings.accept_dns.unwrap_or(false)),
        route_all: Some(false), // default of `tailscale up` on Linux; a new daemon would accept routes
        hostname: Some(settings.hostname.clone().unwrap_or_default()),
        advertise_routes: settings.routes.as_deref().map(list),
        ..MaskedPrefs::default()
    };
    let mut args = settings.extra_args.iter();
    while let Some(arg) = args.next() {
        let flag = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-'))?;
        let (flag, value) = flag.split_once('=').map_or((flag, None), |(flag, value)| (flag, Some(value.to_owned())));
        match flag {
            "accept-routes" => prefs.route_all = Some(value.map_or(Some(true), |value| go_values::boolean(&value))?),
            "login-server" => prefs.control_url = Some(value.or_else(|| args.next().cloned())?),
            "hostname" => prefs.hostname = Some(value.or_else(|| args.next().cloned())?),
            "advertise-tags" => prefs.advertise_tags = Some(list(&value.or_else(|| args.next().cloned())?)),
            "advertise-routes" => prefs.advertise_routes = Some(list(&value.or_else(|| args.next().cloned())?)),
            _ => return None,
        }
    }
    Some(prefs)
}

fn command(settings: &TwoStep, socket: &str) -> LoginPlan {
    let mut args = vec![format!("--socket={socket}"), "up".to_owned(), format!("--accept-dns={}", settings.accept_dns.unwrap_or(false))];
    let mut stdin = None;
    let secrets = [("--auth-key", &settings.auth_key), ("--client-secret", &settings.client_secret), ("--id-token", &settings.id_token)];
    for (flag, secret) in secrets {
        if let Some(secret) = secret.as_ref().filter(|secret| !secret.is_empty()) {
            if secret.reveal().starts_with("file:") {
                args.push(format!("{flag}={}", secret.reveal()));
            } else {
                args.push(format!("{flag}={STDIN}"));
                stdin = Some(secret.clone());
            }
        }
    }
    let TwoStep { client_id, audience, routes, hostname, .. } = settings;
    let plain = [("--client-id", client_id), ("--audience", audience), ("--advertise-routes", routes), ("--hostname", hostname)];
    args.extend(plain.into_iter().filter_map(|(flag, value)| value.as_ref().map(|value| format!("{flag}={value}"))));
    args.extend(settings.extra_args.iter().cloned());
    LoginPlan::Command { args, stdin }
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn auth_key_login_uses_the_localapi_directly() {
        let settings = TwoStep {
            auth_key: Some(Secret::new("k")),
            hostname: Some("gw".into()),
            routes: Some("10.0.0.0/8, 10.1.0.0/16".into()),
            extra_args: words("--login-server https://hs.example --accept-routes -advertise-tags=tag:k8s"),
            ..TwoStep::default()
        };
        let LoginPlan::Direct { prefs, auth_key } = plan(&settings, "/s") else { panic!("a command") };
        assert_eq!(auth_key, Some(Secret::new("k")));
        assert_eq!((prefs.control_url.as_deref(), prefs.route_all, prefs.corp_dns), (Some("https://hs.example"), Some(true), Some(false)));
        assert_eq!(prefs.advertise_routes, Some(words("10.0.0.0/8 10.1.0.0/16")));
        assert_eq!(prefs.advertise_tags, Some(words("tag:k8s")));
    }

    #[test]
    fn empty_routes_are_cleared_and_unset_routes_unchanged() {
        let routes = |routes: Option<&str>| {
            prefs(&TwoStep { routes: routes.map(str::to_owned), ..TwoStep::default() }).expect("plain").advertise_routes
        };
        assert_eq!(routes(Some("")), Some(Vec::new()));
        assert_eq!(routes(None), None);
    }

    #[test]
    fn oauth_login_passes_the_secret_by_stdin() {
        let settings = TwoStep {
            client_id: Some("id".into()),
            client_secret: Some(Secret::new("tskey-client-x")),
            accept_dns: Some(true),
            hostname: Some("h".into()),
            extra_args: words("--advertise-tags=tag:a"),
            ..TwoStep::default()
        };
        let LoginPlan::Command { args, stdin } = plan(&settings, "/s") else { panic!("direct") };
        assert_eq!(
            args.join(" "),
            "--socket=/s up --accept-dns=true --client-secret=file:/dev/stdin --client-id=id --hostname=h --advertise-tags=tag:a"
        );
        assert_eq!(stdin, Some(Secret::new("tskey-client-x")));
    }

    #[test]
    fn unknown_flag_uses_the_tailscale_command() {
        let settings = TwoStep { auth_key: Some(Secret::new("file:/key")), extra_args: words("--ssh"), ..TwoStep::default() };
        let LoginPlan::Command { args, stdin } = plan(&settings, "/s") else { panic!("direct") };
        assert_eq!((args.join(" ").as_str(), stdin), ("--socket=/s up --accept-dns=false --auth-key=file:/key --ssh", None));
    }
}
