() => {
  // Gradio names some buttons otherwise than they read, which a screen reader or a spoken command cannot follow
  const fix = () => {
    for (const button of document.querySelectorAll("#examples .thumbnail-item[aria-label]")) {
      button.removeAttribute("aria-label");
      for (const image of button.querySelectorAll("img")) image.alt = "";
    }
    for (const button of document.querySelectorAll("button.upload-container[aria-label]")) button.removeAttribute("aria-label");
    // a button within a button: the outer one shows the icon and passes clicks on
    for (const outer of document.querySelectorAll(".icon-button:has(.upload-container)")) {
      const inner = outer.querySelector(".upload-container");
      if (inner.style.display === "none") continue;
      outer.append(...[...inner.querySelectorAll("svg")].map((icon) => icon.cloneNode(true)));
      inner.style.display = "none";
      outer.addEventListener("click", (event) => { if (!inner.contains(event.target)) inner.click(); });
    }
    for (const button of document.querySelectorAll("button[aria-label='common.upload']")) {
      button.setAttribute("aria-label", "Add files");
      button.title = "Add files";
    }
  };
  fix();
  new MutationObserver(fix).observe(document.body, { childList: true, subtree: true });
}
