//! Parser of a document as Chromium prints it, and of no other HTML: elements with attributes and text.

/// An element, or the document itself.
#[derive(Debug, Default)]
pub(crate) struct Element {
    name: String,
    attributes: Vec<(String, String)>,
    children: Vec<Content>,
}

#[derive(Debug)]
enum Content {
    Element(Element),
    Text(String),
}

/// Elements without an end tag.
const VOID: [&str; 6] = ["meta", "link", "input", "img", "br", "hr"];
/// Elements whose content is not markup. The parser skips it.
const RAW: [&str; 3] = ["script", "style", "noscript"];

/// Parses a document.
pub(crate) fn parse(html: &str) -> Element {
    let mut open_elements = vec![Element::default()];
    let mut remaining = html;
    while let Some((text, tail)) = remaining.split_once('<') {
        add(&mut open_elements, Content::Text(unescape(text)));
        let end = end_of_tag(tail);
        let tag = &tail[..end];
        remaining = &tail[(end + 1).min(tail.len())..];
        if tag.starts_with('!') {
            continue;
        }
        if tag.starts_with('/') {
            close(&mut open_elements);
            continue;
        }
        let element = Element::read(tag);
        let name = element.name.clone();
        open_elements.push(element);
        if RAW.contains(&name.as_str()) {
            remaining = remaining.split_once(&format!("</{name}>")).map_or("", |(_, after)| after);
            close(&mut open_elements);
        } else if VOID.contains(&name.as_str()) {
            close(&mut open_elements);
        }
    }
    while open_elements.len() > 1 {
        close(&mut open_elements);
    }
    open_elements.remove(0)
}

fn add(open: &mut [Element], content: Content) {
    open.last_mut().expect("the document is open to the end").children.push(content);
}

fn close(open: &mut Vec<Element>) {
    if open.len() > 1 {
        let element = open.pop().expect("more than one");
        add(open, Content::Element(element));
    }
}

/// Position of the `>` that ends a tag. Quoted values may contain one too.
fn end_of_tag(tail: &str) -> usize {
    let mut is_quoted = false;
    for (position, letter) in tail.char_indices() {
        match letter {
            '"' => is_quoted = !is_quoted,
            '>' if !is_quoted => return position,
            _ => {}
        }
    }
    tail.len()
}

fn unescape(text: &str) -> String {
    let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"");
    text.replace("&nbsp;", "\u{a0}").replace("&amp;", "&")
}

impl Element {
    fn read(tag: &str) -> Self {
        let (name, mut remaining) = tag.split_once(' ').unwrap_or((tag, ""));
        let mut element = Self { name: name.to_owned(), ..Self::default() };
        while let Some((key, tail)) = remaining.split_once("=\"") {
            let (value, after) = tail.split_once('"').unwrap_or((tail, ""));
            element.attributes.push((key.trim().to_owned(), unescape(value)));
            remaining = after;
        }
        element
    }

    /// The value of an attribute.
    pub(crate) fn attribute(&self, name: &str) -> Option<&str> {
        let found = self.attributes.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }

    /// All text in this element.
    pub(crate) fn text(&self) -> String {
        let part = |content: &Content| match content {
            Content::Element(element) => element.text(),
            Content::Text(text) => text.clone(),
        };
        self.children.iter().map(part).collect()
    }

    /// Appends the elements below this one that pass a test, in the order of the document.
    fn collect_matching<'a>(
        &'a self,
        test: &dyn Fn(&Element) -> bool,
        found: &mut Vec<&'a Element>,
    ) {
        for content in &self.children {
            if let Content::Element(element) = content {
                if test(element) {
                    found.push(element);
                }
                element.collect_matching(test, found);
            }
        }
    }

    /// Elements with this tag name.
    pub(crate) fn named(&self, name: &str) -> Vec<&Element> {
        let mut found = Vec::new();
        self.collect_matching(&|element| element.name == name, &mut found);
        found
    }

    /// The first element with this tag name.
    pub(crate) fn first(&self, name: &str) -> &Element {
        self.named(name).first().unwrap_or_else(|| panic!("no {name} in {:?}", self.text()))
    }

    /// Elements with an attribute.
    pub(crate) fn with_attribute(&self, name: &str) -> Vec<&Element> {
        let mut found = Vec::new();
        self.collect_matching(&|element| element.attribute(name).is_some(), &mut found);
        found
    }

    /// Elements with this value of an attribute.
    pub(crate) fn with_attribute_value(&self, name: &str, value: &str) -> Vec<&Element> {
        let mut found = self.with_attribute(name);
        found.retain(|element| element.attribute(name) == Some(value));
        found
    }

    /// The only element with this value of an attribute.
    pub(crate) fn single_with_value(&self, name: &str, value: &str) -> &Element {
        match self.with_attribute_value(name, value)[..] {
            [element] => element,
            ref found => panic!("{} with {name}={value:?} in {:?}", found.len(), self.text()),
        }
    }
}
