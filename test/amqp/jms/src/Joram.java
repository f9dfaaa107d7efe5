// SPDX-License-Identifier: Apache-2.0

import java.io.File;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Enumeration;
import java.util.List;
import java.util.jar.JarEntry;
import java.util.jar.JarFile;
import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.Request;
import org.junit.runner.manipulation.Filter;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/**
 * Runs Joram's JMS tests. Each line of standard output is a tab-separated record: "admin" and an operation, with the response as a
 * line of standard input (see LockstepAdmin); or "test", the test's name, "passed" or "failed", and the reason.
 */
public final class Joram {
  /** Usage: Joram URL JAR [PART-OF-A-NAME...]. The tests are all classes of the jar whose names end in Test. */
  public static void main(String[] args) throws Exception {
    System.setProperty("joram.url", args[0]);
    List<String> parts = List.of(args).subList(2, args.length);
    JUnitCore core = new JUnitCore();
    core.addListener(new Listener());
    for (String name : classes(args[1])) {
      Request request = Request.aClass(Class.forName(name)).filterWith(new Chosen(parts));
      core.run(request);
    }
    System.exit(0);
  }

  private static List<String> classes(String jar) throws Exception {
    List<String> names = new ArrayList<>();
    try (JarFile f = new JarFile(new File(jar))) {
      for (Enumeration<JarEntry> e = f.entries(); e.hasMoreElements();) {
        String name = e.nextElement().getName();
        if (name.endsWith("Test.class")) {
          names.add(name.substring(0, name.length() - ".class".length()).replace('/', '.'));
        }
      }
    }
    Collections.sort(names);
    return names;
  }

  static String name(Description d) {
    String c = d.getClassName();
    return c.substring(c.lastIndexOf('.') + 1) + "." + d.getMethodName();
  }

  /** Selects the tests whose names contain one of the parts. */
  private static final class Chosen extends Filter {
    private final List<String> parts;

    Chosen(List<String> parts) {
      this.parts = parts;
    }

    @Override
    public boolean shouldRun(Description d) {
      if (d.getMethodName() == null || parts.isEmpty()) {
        return true;
      }
      return parts.stream().anyMatch(name(d)::contains);
    }

    @Override
    public String describe() {
      return "chosen tests";
    }
  }

  private static final class Listener extends RunListener {
    private Failure failure;
    private long began;

    @Override
    public void testStarted(Description d) {
      failure = null;
      began = System.nanoTime();
    }

    @Override
    public void testFailure(Failure f) {
      if (f.getDescription().getMethodName() == null || f.getDescription().getMethodName().startsWith("initializationError")) {
        return; // no test of the class was selected
      }
      failure = f;
    }

    @Override
    public void testFinished(Description d) {
      long took = (System.nanoTime() - began) / 1_000_000;
      if (name(d).contains("initializationError")) {
        return;
      }
      String why = "";
      if (failure != null) {
        Throwable e = failure.getException();
        why = String.valueOf(e).replaceAll("\\s+", " ");
        for (StackTraceElement at : e.getStackTrace()) {
          if (at.getClassName().startsWith("org.objectweb")) {
            why += " at " + at.getMethodName() + ":" + at.getLineNumber();
            break;
          }
        }
      }
      synchronized (System.out) {
        System.out.println("test\t" + name(d) + "\t" + (failure == null ? "passed" : "failed") + "\t" + took + "\t" + why);
      }
    }
  }
}
