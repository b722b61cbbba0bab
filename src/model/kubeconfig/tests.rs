use proptest::prelude::*;
use serde_json::Value;

use super::{Access, Address, AddressFault, EntryFault, KubeconfigFault, remove};

const STOCK: &str = "\
apiVersion: v1
clusters:
- cluster:
    server: https://kube.tail.ts.net
  name: kube.tail.ts.net
contexts:
- context:
    cluster: kube.tail.ts.net
    user: tailscale-auth
  name: kube.tail.ts.net
current-context: kube.tail.ts.net
kind: Config
users:
- name: tailscale-auth
  user:
    token: unused
";

fn access(address: &str) -> Access {
    let address = Address::parse(address).expect("an address");
    Access { address, context: None, namespace: None, authority: None, user: None, keep_context: false }
}

fn kube() -> Access {
    access("kube.tail.ts.net")
}

/// The changed text of a single file, or the former one.
fn one(text: &str, change: impl Fn(&[Option<String>]) -> Result<Vec<Option<String>>, KubeconfigFault>) -> Result<String, KubeconfigFault> {
    Ok(change(&[Some(text.to_owned())])?.remove(0).unwrap_or_else(|| text.to_owned()))
}

fn added(text: &str) -> String {
    one(text, |texts| kube().add(texts)).expect("added")
}

fn removed(text: &str) -> String {
    one(text, |texts| remove(&kube().address, texts)).expect("removed")
}

#[test]
fn new_file_is_the_one_of_the_stock_command() {
    assert_eq!(kube().print().expect("text"), STOCK);
    for empty in ["", "# mine\n", "---\n", "# mine"] {
        let text = added(empty);
        let start = if empty.ends_with('\n') || empty.is_empty() { empty.to_owned() } else { format!("{empty}\n") };
        assert_eq!(text, format!("{start}{STOCK}"));
    }
    assert_eq!(added(STOCK), STOCK, "the stock command's own entries");
    let empty = removed(STOCK);
    assert_eq!(empty, "apiVersion: v1\nclusters: []\ncontexts: []\ncurrent-context: \"\"\nkind: Config\nusers: []\n");
    assert_eq!(added(&empty), STOCK);
}

#[test]
fn address_forms() {
    let cases = [
        ("kube.tail.ts.net", "kube.tail.ts.net", "https://kube.tail.ts.net"),
        ("Kube.Tail.TS.net.", "kube.tail.ts.net", "https://kube.tail.ts.net"),
        ("https://kube.tail.ts.net/", "kube.tail.ts.net", "https://kube.tail.ts.net"),
        ("https://kube.tail.ts.net:443", "kube.tail.ts.net", "https://kube.tail.ts.net"),
        ("https://kube.tail.ts.net:8443", "kube.tail.ts.net:8443", "https://kube.tail.ts.net:8443"),
        ("http://kube.tail.ts.net", "kube.tail.ts.net", "http://kube.tail.ts.net"),
        ("http://100.64.0.9", "100.64.0.9", "http://100.64.0.9"),
        ("http://[fd7a:115c:a1e0::9]:8080", "[fd7a:115c:a1e0::9]:8080", "http://[fd7a:115c:a1e0::9]:8080"),
    ];
    for (text, name, url) in cases {
        let address = Address::parse(text).expect(text);
        assert_eq!((address.name().as_str(), address.url().as_str(), address.is_short()), (name, url, false), "{text}");
    }
    let bad =
        ["", "https://", "ftp://a.b", "https://a.b/x", "a b", "a..b", "-a.b", "a.b:x", "a.b:70000", "user@a.b", "https://a.b?x", "a\nb.c"];
    for text in bad {
        assert_eq!(Address::parse(text), Err(AddressFault::Malformed(text.to_owned())), "{text}");
    }
    for text in ["100.64.0.9", "fd7a:115c:a1e0::9", "https://100.64.0.9", "[fd7a:115c:a1e0::9]:6443"] {
        assert!(matches!(Address::parse(text), Err(AddressFault::Ip(_))), "{text}");
    }
    let short = Address::parse("Kube").expect("a name");
    assert!(short.is_short());
    assert_eq!(short.clone().in_domain_of("laptop.tail.ts.net.").url(), "https://kube.tail.ts.net");
    assert_eq!(short.clone().in_domain_of("laptop"), short);
}

#[test]
fn entries_are_inserted_in_each_notation() {
    let cluster = "cluster:\n    server: https://kube.tail.ts.net\n  name: kube.tail.ts.net\n";
    let cases = [
        (
            "block list",
            "clusters:\n- name: a\n  cluster: {server: x} # a\n",
            format!("clusters:\n- name: a\n  cluster: {{server: x}} # a\n- {cluster}"),
        ),
        (
            "comments",
            "# x\nclusters: # y\n# above\n- name: a\n  # below\n# next\n",
            format!("# x\nclusters: # y\n# above\n- name: a\n  # below\n- {cluster}# next\n"),
        ),
        ("empty list", "clusters: [] # none\n", format!("clusters: # none\n- {cluster}")),
        ("null", "clusters: null\n", format!("clusters:\n- {cluster}")),
        ("no value", "clusters:\n", format!("clusters:\n- {cluster}")),
        ("no line end", "clusters:\n- name: a", format!("clusters:\n- name: a\n- {}", cluster.trim_end())),
        ("dash alone", "clusters:\n-\n  name: a\n", format!("clusters:\n-\n  name: a\n- {cluster}")),
        ("indented", "clusters:\n  - name: a\n", format!("clusters:\n  - name: a\n  - {}", cluster.replace("\n  ", "\n    "))),
        (
            "flow list",
            "clusters: [{name: a}]\n",
            "clusters: [{name: a}, {\"cluster\":{\"server\":\"https://kube.tail.ts.net\"},\"name\":\"kube.tail.ts.net\"}]\n".to_owned(),
        ),
    ];
    for (case, text, expected) in cases {
        // Without the entries of other lists.
        let rest = "contexts:\n- {name: kube.tail.ts.net, context: {cluster: kube.tail.ts.net, user: tailscale-auth}}\nusers:\n- name: tailscale-auth\n";
        let result = one(&format!("{rest}{text}"), |texts| Access { keep_context: true, ..kube() }.add(texts)).expect(case);
        assert_eq!(result, format!("{rest}{expected}"), "{case}");
    }
    let json = r#"{"apiVersion":"v1","kind":"Config","clusters":[],"contexts":null}"#;
    let value: Value = serde_json::from_str(&added(json)).expect("JSON stays JSON");
    let stock: Value = serde_saphyr::from_str(STOCK).expect("YAML");
    assert_eq!(value, stock);
}

#[test]
fn fields_of_existing_entries_are_set_and_the_others_stay() {
    let text = "\
clusters:
- cluster:
    # Behind a proxy.
    proxy-url: http://proxy:3128
    server: http://old # changed
  name: kube.tail.ts.net
contexts:
- context:
    cluster: old
    namespace: mine
  name: kube.tail.ts.net
users:
- name: tailscale-auth
  user: {token: mine}
";
    let expected = text
        .replace("http://old #", "https://kube.tail.ts.net #")
        .replace("    cluster: old", "    user: tailscale-auth\n    cluster: kube.tail.ts.net");
    let expected = format!("current-context: kube.tail.ts.net\n{expected}");
    assert_eq!(added(text), expected);
    let namespace = Access { namespace: Some("other ns".to_owned()), ..kube() };
    assert_eq!(one(&expected, |texts| namespace.add(texts)).expect("set"), expected.replace("mine\n  name", "\"other ns\"\n  name"));
}

#[test]
fn user_of_the_context_is_chosen() {
    let text = "users:\n- name: me\n  user: {token: secret}\n";
    let mine = Access { user: Some("me".to_owned()), context: Some("work".to_owned()), ..kube() };
    let result = one(text, |texts| mine.add(texts)).expect("added");
    assert!(result.contains("    user: me\n  name: work\n") && !result.contains("tailscale-auth"), "{result}");
    let again = one(&result, |texts| Access { user: None, ..mine.clone() }.add(texts)).expect("added");
    assert_eq!(again, result, "the context's user stays without the option");
    let other = Access { user: Some("other".to_owned()), ..mine };
    assert_eq!(one(text, |texts| other.add(texts)), Err(KubeconfigFault::NoUser("other".to_owned())));
    let removed = removed(&result);
    assert!(removed.contains(text) && removed.contains("contexts: []"), "{removed}");
}

#[test]
fn removal_spares_what_other_contexts_use() {
    let other = access("other.tail.ts.net");
    let both = one(&added(""), |texts| other.add(texts)).expect("added");
    let text = removed(&both);
    assert_eq!(text, one("", |texts| other.add(texts)).expect("added"));
    let credentials = STOCK.replace("token: unused", "token: secret");
    assert!(removed(&credentials).contains("token: secret"), "credentials stay");
    let foreign = STOCK.replace("    cluster: kube.tail.ts.net", "    cluster: mine");
    assert!(removed(&foreign).contains("current-context: kube.tail.ts.net"), "a context of another cluster stays");
}

#[test]
fn entries_of_several_files_are_edited_in_their_place() {
    let (first, second) = ("clusters:\n- name: a\ncurrent-context: a\n", added(""));
    let texts = [None, Some(first.to_owned()), Some(second.clone())];
    let changed = kube().add(&texts).expect("added");
    assert_eq!(
        changed,
        [None, Some(first.replace("context: a", "context: kube.tail.ts.net")), None],
        "the current context is of the first file"
    );
    let other = access("other.tail.ts.net").add(&texts).expect("added");
    assert!(other[0].is_none() && other[2].is_none(), "the first existing file");
    assert!(kube().add(&[None, None]).expect("added")[1].is_some(), "the last file, if none exists");
    let changed = remove(&kube().address, &[Some(second.clone()), None, Some(second.clone())]).expect("removed");
    assert!(changed[0] == changed[2] && changed[0].as_ref().is_some_and(|text| !text.contains("ts.net")));
    let broken = [Some(second), Some("a: [".to_owned())];
    assert!(matches!(kube().add(&broken), Err(KubeconfigFault::Document(1, EntryFault::Syntax(_)))));
}

#[test]
fn unusable_texts_are_refused_without_quoting_them() {
    let fault = |text: &str| match one(text, |texts| kube().add(texts)) {
        Err(KubeconfigFault::Document(0, fault)) => fault,
        other => panic!("{text}: {other:?}"),
    };
    for text in ["users: [", "users:\n\t- token: secret\n", "kind: Config\nkind: Config\n", "---\na: b\n---\nc: d\n", "token: \"secret"] {
        let fault = fault(text);
        assert!(matches!(fault, EntryFault::Syntax(_)), "{text}: {fault}");
        assert!(!fault.to_string().contains("secret"), "{fault}");
    }
    for text in ["[]", "a", "kind: Pod\n", "apiVersion: v2\n", "kind: [Config]\n"] {
        assert_eq!(fault(text), EntryFault::Kind, "{text}");
    }
    for text in ["clusters: a\n", "clusters: [a]\n", "clusters: [{name: 1}]\n", "clusters: {}\n"] {
        assert_eq!(fault(text), EntryFault::List("clusters"), "{text}");
    }
    let unusual = [
        "x: &a []\nclusters: *a\n",
        "clusters: &a\n- name: kube.tail.ts.net\n  cluster: &b {server: old}\n- name: z\n  cluster: *b\n",
        "clusters:\n- name: kube.tail.ts.net\n  cluster:\n    server: |\n      old\n",
        "clusters:\n- name: kube.tail.ts.net\n",
    ];
    for text in unusual {
        let fault = fault(text);
        assert!(matches!(fault, EntryFault::Notation(_)), "{text}: {fault}");
    }
}

/// A list of a kubeconfig and whether removal restores its text.
fn list(key: &'static str, body: &'static str) -> impl Strategy<Value = (String, bool)> {
    let extra = prop::sample::select(vec!["", ", x: [1, {y: z}]", ", \"quoted key\": \"#: \\u00e9\"", ", é: 'it''s'"]);
    let block = (
        1..3_usize,
        0..3_usize,
        prop::sample::select(vec!["", " # right", "\n@  # deeper", "\n@  more:\n@    - 1\n@\n@    - |\n@      text\n@  end: x"]),
        any::<bool>(),
    );
    let block = (block, extra.clone()).prop_map(move |((count, indent, tail, comment), extra)| {
        let indent = " ".repeat(indent);
        let item = |index: usize| {
            let above = if comment { format!("\n{indent}# above {index}") } else { String::new() };
            format!("{above}\n{indent}- name: {body}-{index}\n{indent}  {body}: {{a: b{extra}}}{}", tail.replace('@', &indent))
        };
        (format!("{key}:{}", (0..count).map(item).collect::<String>()), true)
    });
    let flow = (1..3_usize, extra).prop_map(move |(count, extra)| {
        let items: Vec<_> = (0..count).map(|index| format!("{{name: n{index}, {body}: {{a: b{extra}}}}}")).collect();
        (format!("{key}: [{}] # flow", items.join(", ")), true)
    });
    let empty = prop::sample::select(vec![
        (format!("{key}: []"), true),
        (format!("{key}: null"), false),
        (format!("{key}:"), false),
        (String::new(), false),
    ]);
    prop_oneof![3 => block, 1 => flow, 1 => empty]
}

/// A kubeconfig and whether removal restores it.
fn kubeconfig() -> impl Strategy<Value = (String, bool)> {
    let lists = (list("clusters", "cluster"), list("contexts", "context"), list("users", "user"));
    let frame = ["apiVersion: v1", "kind: Config", "preferences: {}", "current-context: a # mine", "x-anchor: &a\n  b: c", "# comment", ""];
    let parts = lists.prop_flat_map(move |(a, b, c)| {
        let lines = frame.iter().map(|line| (*line).to_owned()).chain([a.0, b.0, c.0]).collect::<Vec<_>>();
        (Just(lines).prop_shuffle(), Just(a.1 && b.1 && c.1))
    });
    (parts, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|((lines, restores), crlf, ends, explicit)| {
        let text = format!("{}{}\nlast: x", if explicit { "---\n" } else { "" }, lines.join("\n"));
        let text = format!("{text}{}", if ends { "\n" } else { "" });
        (if crlf { text.replace('\n', "\r\n") } else { text }, restores)
    })
}

proptest! {
    #[test]
    fn other_entries_stay_and_removal_restores_the_text((text, restores) in kubeconfig(), keep_context: bool) {
        let access = Access { keep_context, ..kube() };
        let added = one(&text, |texts| access.add(texts)).expect("no notation of these is refused");
        prop_assert_eq!(&one(&added, |texts| access.add(texts)).expect("again"), &added, "a second time");
        let other_lines = |text: &str| text.lines().filter(|line| !line.starts_with("current-context:")).map(str::to_owned).collect::<Vec<_>>();
        let removed = removed(&added);
        if restores && keep_context {
            prop_assert_eq!(&removed, &text);
        } else if restores {
            prop_assert_eq!(other_lines(&removed), other_lines(&text));
        }
        let mut rest = added.lines();
        // Lines of lists that were empty change.
        let present = |line: &&str| !["clusters:", "contexts:", "users:", "current-context:"].iter().any(|key| line.starts_with(key));
        for line in text.lines().filter(present) {
            prop_assert!(rest.any(|other| other == line), "{:?} is missing in its place of\n{}", line, added);
        }
    }

    #[test]
    fn arbitrary_text_is_refused_or_edited_once(text in "[-a-z:\\[\\]{}&*|>'\"#, \n\t]{0,60}") {
        if let Ok(added) = one(&text, |texts| kube().add(texts)) {
            prop_assert_eq!(&one(&added, |texts| kube().add(texts)).expect("again"), &added);
        }
    }
}
