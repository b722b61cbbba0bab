//! Command line of tailscaled, in the order that the Tailscale operator's tests expect.

use std::path::Path;

use super::settings::{DaemonSettings, StateStore};

/// Arguments of tailscaled, without the program name. `config`: config file of a one-step login. `state`: state file that replaces an
/// unavailable Secret.
pub fn command_line(settings: &DaemonSettings, config: Option<&Path>, state: Option<&Path>) -> Vec<String> {
    let mut args = vec![format!("--socket={}", settings.socket.display())];
    match &settings.state {
        StateStore::KubeSecret { name, dir } => {
            args.push(state.map_or_else(|| format!("--state=kube:{name}"), |file| format!("--state={}", file.display())));
            args.push(format!("--statedir={}", dir.as_deref().unwrap_or(Path::new("/tmp")).display()));
        }
        StateStore::Dir(dir) => args.push(format!("--statedir={}", dir.display())),
        StateStore::Memory => args.extend(["--state=mem:".to_owned(), "--statedir=/tmp".to_owned()]),
    }
    if settings.userspace {
        args.push("--tun=userspace-networking".to_owned());
    }
    let optional = [
        ("--socks5-server", settings.socks5.clone()),
        ("--outbound-http-proxy-listen", settings.http_proxy.clone()),
        ("--config", config.map(|file| file.display().to_string())),
        ("--debug", settings.debug_addr.clone()),
    ];
    args.extend(optional.into_iter().filter_map(|(flag, value)| value.map(|value| format!("{flag}={value}"))));
    args.extend(settings.extra_args.iter().cloned());
    args
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tailnet::supervise::settings::tests::settings;

    fn line(settings: &DaemonSettings, config: Option<&str>) -> String {
        command_line(settings, config.map(Path::new), None).join(" ")
    }

    #[test]
    fn group_member_uses_secret_state_and_config_file() {
        let mut group = settings();
        group.state = StateStore::KubeSecret { name: "eg-0".into(), dir: None };
        let golden = "--socket=/tmp/tailscaled.sock --state=kube:eg-0 --statedir=/tmp --config=/etc/tsconfig/eg-0/cap-106.hujson";
        assert_eq!(line(&group, Some("/etc/tsconfig/eg-0/cap-106.hujson")), golden);
        let away = command_line(&group, None, group.state_file().as_deref()).join(" ");
        assert_eq!(away, "--socket=/tmp/tailscaled.sock --state=/tmp/tailscaled.state --statedir=/tmp");
    }

    #[test]
    fn all_arguments_have_a_fixed_order() {
        let mut all = settings();
        all.state = StateStore::KubeSecret { name: "s".into(), dir: Some("/var/lib/ts".into()) };
        all.userspace = true;
        all.socks5 = Some(":1080".into());
        all.http_proxy = Some(":8080".into());
        all.debug_addr = Some("[::1]:8081".into());
        all.extra_args = vec!["--verbose=1".into(), "--port=41641".into()];
        let golden = "--socket=/tmp/tailscaled.sock --state=kube:s --statedir=/var/lib/ts --tun=userspace-networking --socks5-server=:1080 \
                      --outbound-http-proxy-listen=:8080 --config=/c --debug=[::1]:8081 --verbose=1 --port=41641";
        assert_eq!(line(&all, Some("/c")), golden);
    }

    #[test]
    fn state_directory_or_memory_is_used_outside_a_cluster() {
        let mut outside = settings();
        outside.state = StateStore::Dir("/var/lib/ts".into());
        assert_eq!(line(&outside, None), "--socket=/tmp/tailscaled.sock --statedir=/var/lib/ts");
        outside.state = StateStore::Memory;
        assert_eq!(line(&outside, None), "--socket=/tmp/tailscaled.sock --state=mem: --statedir=/tmp");
    }
}
