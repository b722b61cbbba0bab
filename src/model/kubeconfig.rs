//! Kubeconfig files: entries of an API server proxy, added to and removed from the texts of one or several files.
//!
//! The entries have the shape that `tailscale configure kubeconfig` writes, so that either program edits those of the other. A text is
//! edited in place: comments, order and other entries stay byte for byte. The result is parsed and compared with the expected value; a text
//! whose notation does not permit the edit is refused.

mod address;
mod document;
mod edits;
mod tree;

use serde_json::Value;

pub use address::{Address, AddressFault};
pub use document::EntryFault;
use document::YamlDocument;
use edits::{EntryList, Fields, TextEdit};

/// User that `tailscale configure kubeconfig` writes, with a token that the proxy ignores: without one, kubectl prompts for a password.
const DUMMY_USER: &str = "tailscale-auth";
const DUMMY_TOKEN: (&str, &str) = ("token", "unused");

/// Entries of one API server proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    pub address: Address,
    /// Name of the context; that of the cluster by default.
    pub context: Option<String>,
    pub namespace: Option<String>,
    /// File of the CA that issued the proxy's certificate, if that is not a public one.
    pub authority: Option<String>,
    /// Existing user entry, for a proxy without authentication.
    pub user: Option<String>,
    /// Whether the current context stays.
    pub keep_context: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KubeconfigFault {
    /// Index of the file.
    #[error("{1}")]
    Document(usize, EntryFault),
    #[error("no kubeconfig has a user {0:?}; add it by kubectl config set-credentials, or omit the option")]
    NoUser(String),
}

/// Files in kubectl's order of precedence.
struct Files {
    documents: Vec<Option<YamlDocument>>,
    changed: Vec<bool>,
}

impl Access {
    /// Name of the context.
    pub fn context_name(&self) -> String {
        self.context.clone().unwrap_or_else(|| self.address.name())
    }

    /// Text of a kubeconfig with these entries alone. Fails if it names a user.
    pub fn print(&self) -> Result<String, KubeconfigFault> {
        Ok(self.add(&[None])?.into_iter().flatten().next().unwrap_or_default())
    }

    /// New texts of the changed files; an absent file has no text. As kubectl, changes an entry in the first file that has it and adds one to
    /// the first existing file, or the last one if none exists.
    pub fn add(&self, texts: &[Option<String>]) -> Result<Vec<Option<String>>, KubeconfigFault> {
        let mut files = Files::parse(texts)?;
        let (cluster, url, context) = (self.address.name(), self.address.url(), self.context_name());
        let mut fields: Fields<'_> = self.authority.iter().map(|file| ("certificate-authority", file.as_str())).collect();
        fields.push(("server", &url));
        files.put(EntryList::Clusters, &cluster, &fields)?;
        let present = files.find(EntryList::Contexts, &context).map(|(_, entry)| entry["context"].clone());
        let user = match (&self.user, present.as_ref().and_then(|context| context["user"].as_str())) {
            (Some(user), _) => user,
            // The user's own choice, for a proxy without authentication.
            (None, Some(user)) if files.find(EntryList::Users, user).is_some() => user,
            (None, _) => DUMMY_USER,
        };
        if files.find(EntryList::Users, user).is_none() {
            if user != DUMMY_USER {
                return Err(KubeconfigFault::NoUser(user.to_owned()));
            }
            files.put(EntryList::Users, user, &vec![DUMMY_TOKEN])?;
        }
        let mut fields = vec![("cluster", cluster.as_str())];
        fields.extend(self.namespace.as_deref().map(|namespace| ("namespace", namespace)));
        fields.push(("user", user));
        files.put(EntryList::Contexts, &context, &fields)?;
        if !self.keep_context && files.current() != Some(&context) {
            let index = files.default();
            files.apply(index, &TextEdit::Current(&context))?;
        }
        Ok(files.texts())
    }
}

/// New texts of the files from which an address is removed: its cluster, the contexts of this cluster, and the user of
/// `tailscale configure kubeconfig` after its last context. A current context that is removed becomes empty.
pub fn remove(address: &Address, texts: &[Option<String>]) -> Result<Vec<Option<String>>, KubeconfigFault> {
    let mut files = Files::parse(texts)?;
    let cluster = address.name();
    let contexts = files.names(EntryList::Contexts, |entry| entry["context"]["cluster"] == cluster);
    let had_dummy =
        files.names(EntryList::Contexts, |entry| entry["context"]["cluster"] == cluster && entry["context"]["user"] == DUMMY_USER);
    files.delete(EntryList::Clusters, &cluster, |_| true)?;
    for context in &contexts {
        files.delete(EntryList::Contexts, context, |entry| entry["context"]["cluster"] == cluster)?;
    }
    let (key, token) = DUMMY_TOKEN;
    if !had_dummy.is_empty() && files.names(EntryList::Contexts, |entry| entry["context"]["user"] == DUMMY_USER).is_empty() {
        files.delete(EntryList::Users, DUMMY_USER, |entry| entry["user"] == serde_json::json!({ key: token }))?;
    }
    for index in 0..files.documents.len() {
        let current = files.documents[index].as_ref().and_then(YamlDocument::current);
        if current.is_some_and(|current| contexts.iter().any(|context| context == current)) {
            files.apply(index, &TextEdit::Current(""))?;
        }
    }
    Ok(files.texts())
}

impl Files {
    fn parse(texts: &[Option<String>]) -> Result<Self, KubeconfigFault> {
        let parse = |(index, text): (usize, &Option<String>)| {
            text.as_deref().map(YamlDocument::parse).transpose().map_err(|fault| KubeconfigFault::Document(index, fault))
        };
        let documents = texts.iter().enumerate().map(parse).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { changed: vec![false; documents.len()], documents })
    }

    /// Index of the file to which entries are added.
    fn default(&self) -> usize {
        self.documents.iter().position(Option::is_some).unwrap_or(self.documents.len().saturating_sub(1))
    }

    /// First file that has an entry, and the entry.
    fn find(&self, section: EntryList, name: &str) -> Option<(usize, &Value)> {
        let documents = self.documents.iter().enumerate().filter_map(|(index, document)| Some((index, document.as_ref()?)));
        documents
            .flat_map(|(index, document)| document.entries(section).map(move |entry| (index, entry)))
            .find(|(_, entry)| entry["name"] == name)
    }

    /// Names of the matching entries of all files.
    fn names(&self, section: EntryList, matches: impl Fn(&Value) -> bool) -> Vec<String> {
        let entries = self.documents.iter().flatten().flat_map(|document| document.entries(section));
        entries.filter(|entry| matches(entry)).filter_map(|entry| Some(entry["name"].as_str()?.to_owned())).collect()
    }

    /// Current context: of the first file that names one.
    fn current(&self) -> Option<&str> {
        self.documents.iter().flatten().find_map(YamlDocument::current)
    }

    /// Sets fields of an entry, which is added if no file has it.
    fn put(&mut self, section: EntryList, name: &str, fields: &Fields<'_>) -> Result<(), KubeconfigFault> {
        let Some((index, entry)) = self.find(section, name) else {
            return self.apply(self.default(), &TextEdit::Add(section, name, fields.clone()));
        };
        let different = |(key, value): &&(&'static str, &str)| entry[section.body()][*key] != *value;
        let different: Vec<_> = fields.iter().filter(different).copied().collect();
        different.into_iter().try_for_each(|field| self.apply(index, &TextEdit::Set(section, name, field)))
    }

    /// Deletes the matching entries of a name from all files.
    fn delete(&mut self, section: EntryList, name: &str, matches: impl Fn(&Value) -> bool) -> Result<(), KubeconfigFault> {
        for index in 0..self.documents.len() {
            let matching = |files: &Self| {
                files.documents[index]
                    .as_ref()
                    .is_some_and(|document| document.entries(section).any(|entry| entry["name"] == name && matches(entry)))
            };
            while matching(self) {
                self.apply(index, &TextEdit::Delete(section, name))?;
            }
        }
        Ok(())
    }

    fn apply(&mut self, index: usize, edit: &TextEdit<'_>) -> Result<(), KubeconfigFault> {
        let fault = |fault| KubeconfigFault::Document(index, fault);
        if let Some(slot) = self.documents.get_mut(index) {
            let document = slot.take().map_or_else(|| YamlDocument::parse(""), Ok).map_err(fault)?;
            *slot = Some(document.apply(edit).map_err(fault)?);
            self.changed[index] = true;
        }
        Ok(())
    }

    /// Texts of the changed files.
    fn texts(self) -> Vec<Option<String>> {
        self.documents
            .into_iter()
            .zip(self.changed)
            .map(|(document, changed)| document.filter(|_| changed).map(|document| document.text))
            .collect()
    }
}

#[cfg(test)]
mod tests;
