//! Publication by a group of type ingress: objects, Tailscale Services, the replicas' configs, and the status for users.

use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::api::rbac::v1::Role;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tailyard::api::proxygroup::ProxyGroup;

use super::groups;
use kit::apiserver::DEADLINE;
use kit::reconciler::{USERS, stage};
use kit::wait::{eventually_async, until_async};

/// Suffix of the tailnet's names.
const DOMAIN: &str = "tail-lab.ts.net";

#[test]
fn ingress_is_published_and_released() {
    stage(async |stage| {
        let running = stage.reconciler("one", 9100);
        stage.publisher("g", 2).await;
        stage.ingress("app", "g", "my-app").await;
        let sites = async || stage.published("g", "tailyard-routes.json").await;
        let routes = eventually_async("the site is written", DEADLINE, sites, |sites| sites["svc:my-app"].is_object()).await;
        let dns = format!("my-app.{DOMAIN}");
        assert_eq!(routes["svc:my-app"]["hosts"], json!({&dns: {"secret": dns, "issue": true}}));
        let route = &routes["svc:my-app"]["routes"][0];
        assert_eq!(
            (&route["path"], &route["backend"]["service"], &route["backend"]["portName"]),
            (&json!("/"), &json!("web"), &json!("web"))
        );
        let serve = stage.published("g", "serve-config.json").await;
        let handlers = &serve["Services"]["svc:my-app"]["Web"][format!("{dns}:443")]["Handlers"];
        assert!(handlers["/"]["Proxy"].as_str().is_some_and(|url| url.starts_with("http://10.") && url.ends_with(":80/")), "{serve}");

        let reported = async || (stage.named("g-0").await, stage.named("g-1").await);
        eventually_async("the replicas advertise it", DEADLINE, reported, |(one, two)| one == two && *one == ["svc:my-app"]).await;
        let vip = stage.hosted.vips()["svc:my-app"].clone();
        assert_eq!((&vip["ports"], &vip["tags"]), (&json!(["tcp:443"]), &json!(["tag:k8s"])));
        let owners = vip["annotations"]["tailscale.com/owner-references"].as_str().expect("owners");
        assert!(owners.starts_with(r#"{"ownerRefs":[{"operatorID":"tailyard-"#), "{owners}");

        let secret = stage.here::<Secret>().get(&dns).await.expect("its Secret");
        let labels = secret.metadata.labels.expect("labels");
        assert_eq!(secret.type_.as_deref(), Some("kubernetes.io/tls"));
        assert_eq!(
            (&*labels["tailscale.com/secret-type"], &*labels["tailscale.com/proxy-group"], &*labels["tailscale.com/domain"]),
            ("certs", "g", &*dns)
        );
        assert_eq!(stage.reached("app").await["ingress"], Value::Null, "no replica advertises it");

        stage.cluster.patch_secret(&dns, &[("tls.crt", "a chain"), ("tls.key", "a key")]).await;
        stage.advertise("g", 2).await;
        let reached = async || stage.reached("app").await;
        let wanted = json!([{"hostname": dns, "ports": [{"port": 443, "protocol": "TCP"}]}]);
        eventually_async("it says where it is reached", DEADLINE, reached, |reported| reported["ingress"] == wanted).await;
        stage.quiet(&running).await;
        let found = stage.here::<Secret>().get(&dns).await.expect("its Secret").data.expect("data");
        assert_eq!(found["tls.crt"].0, b"a chain", "what the replicas write stays");

        stage.delete(&stage.ingresses(), "app").await;
        eventually_async("the replicas advertise nothing", DEADLINE, reported, |(one, two)| one.is_empty() && two.is_empty()).await;
        assert!(stage.hosted.vips().contains_key("svc:my-app"), "they still advertise it");
        assert!(stage.published("g", "tailyard-routes.json").await["svc:my-app"].is_object());
        stage.advertise("g", 2).await;
        stage.gone(&stage.ingresses(), "app").await;
        stage.gone(&stage.here::<Secret>(), &dns).await;
        assert!(stage.hosted.vips().is_empty());
        assert_eq!(stage.published("g", "tailyard-routes.json").await, json!({}));
        let calls = stage.hosted.all_calls();
        let deleted = calls.iter().filter(|call| call.starts_with("DELETE") && call.contains("vip-services")).count();
        assert_eq!(deleted, 1, "{calls:?}");
    });
}

#[test]
fn deleted_objects_of_an_ingress_group_are_recreated() {
    stage(async |stage| {
        let _running = stage.reconciler("one", 9100);
        stage.publisher("g", 2).await;
        stage.ingress("app", "g", "my-app").await;
        let sites = async || stage.published("g", "tailyard-routes.json").await;
        let before = eventually_async("the site is written", DEADLINE, sites, |sites| sites["svc:my-app"]["addresses"].is_array()).await;
        let named = async || (stage.named("g-0").await, stage.named("g-1").await);
        let both = |(one, two): &(Vec<String>, Vec<String>)| one == two && *one == ["svc:my-app"];
        eventually_async("the replicas have the name", DEADLINE, named, both).await;
        groups::delete_objects(&stage, "g").await;
        // Replicas restore the lost values of their state Secrets.
        stage.attend("g", 2).await;
        eventually_async("the same site", DEADLINE, sites, |sites| *sites == before).await;
        eventually_async("the replicas have the name again", DEADLINE, named, both).await;
        assert!(stage.hosted.vips().contains_key("svc:my-app"));
    });
}

#[test]
fn l4_service_is_published_while_it_has_endpoints() {
    stage(async |stage| {
        let running = stage.reconciler("one", 9100);
        stage.publisher("g", 2).await;
        stage.exposed("db", "g", "database").await;
        let mappings = async || stage.published("g", "ingress-config.json").await;
        let config =
            eventually_async("the addresses are written", DEADLINE, mappings, |config| config["svc:database"]["IPv4Mapping"].is_object())
                .await;
        let vip = stage.hosted.vips()["svc:database"].clone();
        assert_eq!(
            (&vip["ports"], &config["svc:database"]["IPv4Mapping"]["TailscaleServiceIP"]),
            (&json!(["do-not-validate"]), &vip["addrs"][0])
        );
        assert_eq!(stage.published("g", "serve-config.json").await["Services"]["svc:database"], json!({"Tun": true}));
        let reported = async |kind: &str| stage.condition("db", kind).await;
        eventually_async(
            "it has no backend",
            DEADLINE,
            async || reported("TailscaleIngressSvcConfigured").await,
            |reported| reported.starts_with("False IngressSvcNoBackendsConfigured 0/2"),
        )
        .await;
        stage.wait_advertised("g", &[]).await;
        stage.endpoint("db", true).await;
        stage.wait_advertised("g", &["svc:database"]).await;
        stage.advertise("g", 1).await;
        let configured = async || reported("TailscaleIngressSvcConfigured").await;
        eventually_async("one advertises it", DEADLINE, configured, |reported| {
            reported.starts_with("True IngressSvcConfigured 1/2 proxy backends")
        })
        .await;
        stage.balanced("lb", "g").await;
        stage.endpoint("lb", true).await;
        stage.wait_advertised("g", &["svc:database", "svc:default-lb"]).await;
        stage.advertise("g", 2).await;
        let status = async || json!(stage.users().get("lb").await.expect("there").status.and_then(|status| status.load_balancer));
        let ip = stage.hosted.vips()["svc:default-lb"]["addrs"][0].clone();
        let wanted = json!([{"hostname": format!("default-lb.{DOMAIN}"), "ip": ip, "ipMode": "VIP"}]);
        eventually_async("it says where it is reached", DEADLINE, status, |status| status["ingress"] == wanted).await;
        stage.delete(&stage.users(), "lb").await;
        stage.wait_advertised("g", &["svc:database"]).await;
        stage.advertise("g", 2).await;
        stage.gone(&stage.users(), "lb").await;
        stage.endpoint("db", false).await;
        stage.wait_advertised("g", &[]).await;
        stage.advertise("g", 2).await;
        stage.quiet(&running).await;

        let unmarked = Patch::Merge(json!({"metadata": {"annotations": {"tailscale.com/expose": null}}}));
        stage.users().patch("db", &PatchParams::default(), &unmarked).await.expect("changed");
        let finalizers = async || stage.users().get("db").await.expect("there").metadata.finalizers;
        eventually_async("it is released", DEADLINE, finalizers, |found| found.as_ref().is_none_or(Vec::is_empty)).await;
        assert!(stage.hosted.vips().is_empty());
        assert_eq!(stage.condition("db", "TailscaleIngressSvcConfigured").await, "");
        stage.quiet(&running).await;
    });
}

#[test]
fn service_with_the_finalizer_of_the_tailscale_operator_is_released_and_deleted() {
    stage(async |stage| {
        let running = stage.reconciler("one", 9100);
        stage.publisher("g", 2).await;
        stage.exposed("db", "g", "database").await;
        stage.endpoint("db", true).await;
        let finalizers = async || stage.users().get("db").await.expect("there").metadata.finalizers.unwrap_or_default();
        let taken_over = async || {
            stage.wait_advertised("g", &["svc:database"]).await;
            stage.advertise("g", 2).await;
            let theirs = Patch::Merge(json!({"metadata": {"finalizers": ["g.tailscale.com/service-pg-finalizer"]}}));
            stage.users().patch("db", &PatchParams::default(), &theirs).await.expect("changed");
            stage.quiet(&running).await;
            assert_eq!(finalizers().await, ["g.tailscale.com/service-pg-finalizer"]);
        };
        taken_over().await;
        let exposed = |value: Value| Patch::Merge(json!({"metadata": {"annotations": {"tailscale.com/expose": value}}}));
        stage.users().patch("db", &PatchParams::default(), &exposed(Value::Null)).await.expect("changed");
        stage.wait_advertised("g", &[]).await;
        stage.advertise("g", 2).await;
        eventually_async("it is released", DEADLINE, finalizers, Vec::is_empty).await;
        stage.users().patch("db", &PatchParams::default(), &exposed(json!("true"))).await.expect("changed");
        taken_over().await;
        stage.delete(&stage.users(), "db").await;
        stage.wait_advertised("g", &[]).await;
        stage.advertise("g", 2).await;
        stage.gone(&stage.users(), "db").await;
        assert!(stage.hosted.vips().is_empty());
    });
}

#[test]
fn many_ingresses_need_few_calls_and_writes() {
    const MANY: usize = 30;
    stage(async |stage| {
        let running = stage.reconciler("one", 9100);
        stage.publisher("g", 2).await;
        let names: Vec<_> = (0..MANY).map(|number| format!("app{number:02}")).collect();
        for name in &names {
            stage.ingress(name, "g", name).await;
        }
        let wanted: Vec<_> = names.iter().map(|name| format!("svc:{name}")).collect();
        stage.wait_advertised("g", &wanted.iter().map(String::as_str).collect::<Vec<_>>()).await;
        stage.advertise("g", 2).await;
        stage.quiet(&running).await;
        let calls = || stage.hosted.calls("GET /api/v2/tailnet/-/vip-services") + stage.hosted.calls("PUT /api/v2/tailnet/-/vip-services");
        let made = calls();
        assert!(made <= 3 * MANY + 10, "{made} calls for {MANY} names");
        let writes = stage.cluster.writes();
        let role = writes.iter().filter(|write| write.contains(" roles g ")).count();
        assert!(role <= MANY + 3, "{role} writes of one Role");
        for _ in 0..5 {
            stage.poke().await;
            stage.advertise("g", 2).await;
        }
        stage.quiet(&running).await;
        assert_eq!((calls(), stage.cluster.writes().len()), (made, writes.len()), "nothing changed");
    });
}

#[test]
fn custom_host_uses_a_permitted_certificate_secret() {
    stage(async |stage| {
        let _running = stage.reconciler("one", 9100);
        stage.publisher("g", 1).await;
        stage.ingress("app", "g", "app").await;
        let tls = json!([{"hosts": ["app"]}, {"hosts": ["www.example.com"], "secretName": "www"}]);
        let patch = Patch::Merge(json!({"spec": {"tls": tls}}));
        stage.ingresses().patch("app", &PatchParams::default(), &patch).await.expect("changed");
        stage.cluster.make_secret("www", &[("tls.crt", "a chain"), ("tls.key", "a key")]).await;
        let reported = async || stage.events("app").await;
        eventually_async("what is missing", DEADLINE, reported, |reported| {
            reported.iter().any(|event| event.contains("label tailyard.io/allow-ingress-tls=true"))
        })
        .await;
        let labelled = Patch::Merge(json!({"metadata": {"labels": {"tailyard.io/allow-ingress-tls": "true"}}}));
        stage.here::<Secret>().patch("www", &PatchParams::default(), &labelled).await.expect("labelled");
        let hosts = async || stage.published("g", "tailyard-routes.json").await["svc:app"]["hosts"]["www.example.com"].clone();
        eventually_async("it is served", DEADLINE, hosts, |host| *host == json!({"secret": "www"})).await;
        eventually_async("what is in it was read", DEADLINE, reported, |reported| {
            reported.iter().any(|event| event.contains("ts/www cannot be used"))
        })
        .await;
        let rules = async || json!(stage.here::<Role>().get("g").await.expect("there").rules).to_string();
        eventually_async("the Pods may read it", DEADLINE, rules, |rules| rules.contains(r#""g-0-config","www"]"#)).await;
    });
}

#[test]
fn failed_funnel_is_reported_to_its_ingress() {
    stage(async |stage| {
        let running = stage.reconciler("one", 9100);
        stage.publisher("g", 2).await;
        stage.ingress("app", "g", "app").await;
        stage.ingress("inside", "g", "inside").await;
        let funnel = Patch::Merge(json!({"metadata": {"annotations": {"tailscale.com/funnel": "true"}}}));
        stage.ingresses().patch("app", &PatchParams::default(), &funnel).await.expect("changed");
        for dns in ["app", "inside"] {
            stage.certify(&format!("{dns}.{DOMAIN}")).await;
        }
        stage.serves("app", "g").await;
        stage.serves("inside", "g").await;
        stage
            .cluster
            .patch_secret("g-0", &[("tailyard-funnel-errors.json", r#"{"svc:app":"the tailnet does not let this node be"}"#)])
            .await;
        let reported = async || stage.events("app").await;
        let wanted = "PartiallyAdvertised It is not reached from the internet (Funnel), as the tailnet does not let this node be.";
        eventually_async("why it is not reached", DEADLINE, reported, |reported| reported.iter().any(|reported| reported == wanted)).await;
        let published = async || stage.says("g", "TailyardServicesAdvertised").await;
        eventually_async("the group says who", DEADLINE, published, |status| {
            status.contains("1 of 2") && status.contains("default/app (PartiallyAdvertised)")
        })
        .await;
        assert_eq!(stage.events("inside").await, [""; 0]);
        stage.cluster.patch_secret("g-0", &[("tailyard-funnel-errors.json", "{}")]).await;
        eventually_async("all is well", DEADLINE, published, |status| status.starts_with("True")).await;
        stage.quiet(&running).await;
    });
}

#[test]
fn pods_may_read_endpoints_only_in_backend_namespaces() {
    stage(async |stage| {
        let running = stage.reconciler("one", 9100);
        stage.publisher("g", 2).await;
        stage.publisher("other", 2).await;
        let reads = async |group: &str, namespace: &str| {
            let attributes = json!({"group": "discovery.k8s.io", "resource": "endpointslices", "verb": "watch", "namespace": namespace});
            let user = format!("system:serviceaccount:ts:{group}");
            let groups = json!(["system:serviceaccounts", "system:serviceaccounts:ts", "system:authenticated"]);
            let review = json!({"spec": {"user": user, "groups": groups, "resourceAttributes": attributes}});
            let review = serde_json::from_value(review).expect("a review");
            let made = stage.all::<SubjectAccessReview>().create(&PostParams::default(), &review).await.expect("an answer");
            made.status.is_some_and(|status| status.allowed)
        };
        assert!(!reads("g", USERS).await, "nothing is behind it yet");
        stage.ingress("app", "g", "app").await;
        until_async("it reads there", DEADLINE, async || reads("g", USERS).await).await;
        assert_eq!([reads("other", USERS).await, reads("g", "kube-system").await], [false, false]);
        stage.certify(&format!("app.{DOMAIN}")).await;
        stage.serves("app", "g").await;
        stage.quiet(&running).await;
        stage.delete(&stage.ingresses(), "app").await;
        stage.wait_advertised("g", &[]).await;
        assert!(reads("g", USERS).await, "it still serves it");
        stage.advertise("g", 2).await;
        stage.gone(&stage.ingresses(), "app").await;
        eventually_async("it reads there no more", DEADLINE, async || reads("g", USERS).await, |reads| !reads).await;
        stage.quiet(&running).await;
    });
}

#[test]
fn invalid_ingress_keeps_its_config_and_affects_no_other() {
    stage(async |stage| {
        let _running = stage.reconciler("one", 9100);
        stage.publisher("g", 2).await;
        stage.ingress("good", "g", "good").await;
        stage.ingress("turns", "g", "turns").await;
        stage.wait_advertised("g", &["svc:good", "svc:turns"]).await;
        stage.ingress("other", "g", "good").await;
        let taken = async || stage.events("other").await;
        eventually_async("whose the name is", DEADLINE, taken, |reported| {
            reported.iter().any(|event| event.starts_with("NameConflict Ingress default/good has the name good already"))
        })
        .await;
        let wrong =
            Patch::Merge(json!({"spec": {"defaultBackend": {"service": {"name": "missing", "port": {"name": null, "number": 80}}}}}));
        stage.ingresses().patch("turns", &PatchParams::default(), &wrong).await.expect("changed");
        let invalid = async || stage.events("turns").await;
        eventually_async("what is wrong", DEADLINE, invalid, |reported| {
            reported
                .iter()
                .any(|event| event.starts_with("InvalidIngressConfiguration") && event.contains("default/missing does not exist"))
        })
        .await;
        stage.ingress("third", "g", "third").await;
        stage.wait_advertised("g", &["svc:good", "svc:third", "svc:turns"]).await;
        assert_eq!(
            stage.published("g", "tailyard-routes.json").await["svc:turns"]["routes"][0]["backend"]["service"],
            "web",
            "the last good one"
        );
        stage.delete(&stage.ingresses(), "good").await;
        stage.advertise("g", 2).await;
        stage.gone(&stage.ingresses(), "good").await;
        let origin = async || stage.published("g", "tailyard-owners.json").await["svc:good"]["name"].clone();
        eventually_async("the next one has the name", DEADLINE, origin, |name| name == "other").await;
    });
}

#[test]
fn deletion_in_any_order_leaves_nothing() {
    stage(async |stage| {
        let _running = stage.reconciler("one", 9100);
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        for (name, group_first, refused) in [("a", true, false), ("b", false, false), ("c", false, true)] {
            stage.publisher(name, 2).await;
            stage.ingress(name, name, name).await;
            stage.exposed(&format!("s{name}"), name, &format!("s{name}")).await;
            stage.endpoint(&format!("s{name}"), true).await;
            let dns = format!("{name}.{DOMAIN}");
            stage.certify(&dns).await;
            stage.serves(name, name).await;
            if refused {
                stage.hosted.deny("DELETE /api/v2/tailnet/-/vip-services", 500);
            }
            if group_first {
                stage.delete(&stage.all::<ProxyGroup>(), name).await;
            }
            stage.delete(&stage.ingresses(), name).await;
            stage.delete(&stage.users(), &format!("s{name}")).await;
            if refused {
                stage.advertise(name, 2).await;
                let tried = async || stage.hosted.calls("DELETE /api/v2/tailnet/-/vip-services");
                eventually_async("it is tried", DEADLINE, tried, |calls| *calls > 3).await;
                assert!(stage.here::<Secret>().get_opt(&dns).await.expect("an answer").is_some(), "the Tailscale Service is still there");
                stage.hosted.deny_nothing();
            }
            if !group_first {
                stage.delete(&stage.all::<ProxyGroup>(), name).await;
            }
            for ordinal in 0..2 {
                stage.here::<Pod>().delete(&format!("{name}-{ordinal}"), &now).await.expect("the Pod goes");
            }
            stage.gone(&stage.ingresses(), name).await;
            stage.gone(&stage.users(), &format!("s{name}")).await;
            stage.gone(&stage.all::<ProxyGroup>(), name).await;
            stage.gone(&stage.here::<Secret>(), &dns).await;
            let state = stage.hosted.vips().keys().cloned().collect::<Vec<_>>();
            assert_eq!(state, Vec::<String>::new(), "{name}");
        }
        let account = async |name| stage.here::<Secret>().get_opt(name).await.expect("an answer").is_some();
        assert!(!account("tailscale-acme-accounts").await, "no group was asked to share its account");
    });
}
